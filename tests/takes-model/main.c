/* takes-model: explores the take protocol and prints what it found. */
#include "explore.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    int ranks, steps, takes; /* 0: as the scenario says */
    bool full;
    int without; /* a rule, or -1 */
    const char *scenario;
    uint32_t max_states;
};

static double seconds(void) {
    struct timespec t;

    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void usage(FILE *f) {
    fprintf(f, "usage: takes-model [--ranks N] [--steps N] [--takes N] [--full] [--scenario NAME]\n"
               "                   [--without RULE] [--list-rules] [--max-states N]\n"
               "Exits 0 if the protocol holds, 1 with a counterexample, 2 on a wrong call or when\n"
               "the exploration could not be finished.\n");
}

static void list_rules(void) {
    for (int i = 0; i < RULE_COUNT; i++)
        printf("%-22s %s\n", rule_texts[i].name, rule_texts[i].text);
}

static const char *end_text(enum explore_end end) {
    switch (end) {
    case EXPLORE_HOLDS:
        return "holds";
    case EXPLORE_VIOLATED:
        return "VIOLATED";
    case EXPLORE_STOPPED:
        return "stopped at --max-states";
    default:
        return "out of memory";
    }
}

static enum explore_end run_one(const struct options *o, const struct scenario *sc, int ranks) {
    struct model m;
    struct state first;
    struct explore_result res = {0, 0, 0};
    double start = seconds();

    memset(&m, 0, sizeof m);
    m.ranks = ranks;
    m.steps = o->steps ? o->steps : ranks > 2 && sc->steps_wide ? sc->steps_wide : sc->steps;
    m.takes = o->takes ? o->takes : ranks > 2 && sc->takes_wide ? sc->takes_wide : sc->takes;
    model_init(&m, sc, o->without < 0 ? 0 : UINT64_C(1) << o->without, &first);
    enum explore_end end = explore_run(&m, &first, o->max_states, &res);
    if (end == EXPLORE_VIOLATED)
        printf("violation: %s\n", m.violation);
    printf("%-12s %d ranks %d steps %d takes: %9u states %10llu moves  depth %3u %7.2f s  %s\n",
           sc->name, m.ranks, m.steps, m.takes, res.states, (unsigned long long)res.edges,
           res.depth, seconds() - start, end_text(end));
    fflush(stdout);
    return end;
}

static bool wanted(const struct options *o, const struct scenario *sc, int ranks, bool shows) {
    if (o->ranks && o->ranks != ranks)
        return false;
    /* a scenario without a size for 3 ranks may be too large: only if it is asked for by name */
    if (ranks > 2 && !sc->steps_wide && !(o->ranks && o->scenario))
        return false;
    if (o->scenario)
        return !shows && strcmp(o->scenario, sc->name) == 0;
    return (o->without >= 0 && strcmp(rule_texts[o->without].scenario, sc->name) == 0) == shows;
}

/* Two ranks for all scenarios, three for those that name a size for it. Without a
 * rule the scenario that shows it best goes first. */
static int run_all(const struct options *o) {
    const struct scenario *all = o->full ? scenarios_full : scenarios;
    int count = o->full ? scenario_full_count : scenario_count;
    int found = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int at = 0; at < 2 * count; at++) {
            int ranks = 2 + at / count;
            if (!wanted(o, &all[at % count], ranks, pass == 0))
                continue;
            found++;
            enum explore_end end = run_one(o, &all[at % count], ranks);
            if (end != EXPLORE_HOLDS)
                return end == EXPLORE_VIOLATED ? 1 : 2;
        }
    if (!found)
        fprintf(stderr, "takes-model: no such scenario\n");
    return found ? 0 : 2;
}

/* A number from lo to hi, or -1. */
static long number(const char *text, long lo, long hi) {
    char *end;
    long v = strtol(text, &end, 10);

    return *text && !*end && v >= lo && v <= hi ? v : -1;
}

static bool parse(struct options *o, int opt, const char *arg) {
    long v = 0;

    switch (opt) {
    case 'r':
        v = number(arg, 2, RANKS_MAX);
        o->ranks = (int)v;
        break;
    case 's':
        v = number(arg, 1, 4);
        o->steps = (int)v;
        break;
    case 't':
        v = number(arg, 1, TAKES_MAX);
        o->takes = (int)v;
        break;
    case 'm':
        v = number(arg, 1, 200000000);
        o->max_states = (uint32_t)v;
        break;
    case 'f':
        o->full = true;
        break;
    case 'c':
        o->scenario = arg;
        break;
    case 'w':
        o->without = rule_find(arg);
        v = o->without;
        break;
    default:
        return false;
    }
    return v >= 0;
}

int main(int argc, char **argv) {
    static const struct option longs[] = {
        {"ranks", required_argument, NULL, 'r'},
        {"steps", required_argument, NULL, 's'},
        {"takes", required_argument, NULL, 't'},
        {"full", no_argument, NULL, 'f'},
        {"without", required_argument, NULL, 'w'},
        {"list-rules", no_argument, NULL, 'l'},
        {"max-states", required_argument, NULL, 'm'},
        {"scenario", required_argument, NULL, 'c'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct options o = {.without = -1, .max_states = 50000000};
    int opt;

    while ((opt = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (opt == 'l') {
            list_rules();
            return 0;
        }
        if (opt == 'h') {
            usage(stdout);
            return 0;
        }
        if (!parse(&o, opt, optarg)) {
            usage(stderr);
            return 2;
        }
    }
    if (optind != argc) {
        usage(stderr);
        return 2;
    }
    return run_all(&o);
}
