/* print_knobs.c - the table of knobs as lines, for the test of the man pages: name, option, class,
 * type, default, least, most, choices. */
#include "config.h"

#include <stdio.h>

#include "base/knobs.h"

static const char *const type_names[] = {
    [KNOB_U64] = "u64",   [KNOB_F64] = "f64",       [KNOB_BYTES] = "bytes", [KNOB_BOOL] = "bool",
    [KNOB_TEXT] = "text", [KNOB_CHOICE] = "choice", [KNOB_PATHS] = "paths",
};

int main(void) {
    for (size_t i = 0; i < knob_count; i++) {
        const struct knob *k = &knob_table[i];
        printf("%s|%s|%s|%s|%s|%.10g|%.10g|%s\n", k->name, k->option ? k->option : "",
               knob_class_names[k->class], type_names[k->type], k->fallback, k->min, k->max,
               k->choices ? k->choices : "");
    }
    return 0;
}
