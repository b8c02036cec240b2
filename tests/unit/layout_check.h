/* layout_check.h - the rules of a layout, checked with sums and comparisons only. */
#ifndef GFS_TESTS_UNIT_LAYOUT_CHECK_H
#define GFS_TESTS_UNIT_LAYOUT_CHECK_H

#include <stdbool.h>

#include "shard/layout.h"

/* Ends the test at the first rule that does not hold: tensors fill their unit in index order; the
 * pieces of a tensor follow each other in it and in the unit, ascending, one a rank at most; the
 * valid elements of the shards sum to the unit, padding comes last. For units of any size. */
void layout_check_tables(const struct layout *l);

/* Counts the pieces at each element of each unit: once. For units of few elements. */
void layout_check_elements(const struct layout *l);

/* The dumps of all ranks, for each of the 15 masks: arrays and units in order, without gaps. */
void layout_check_dumps(const struct layout *l);

/* All fields are the same. */
void layout_check_equal(const struct layout *a, const struct layout *b);

#endif
