/* test_race_main.c - the program around test_race.c, which is instrumented. */
#include "config.h"

#include "tests/cuda/test_race.h"

int main(void) { return test_race() != 0; }
