/* Names of the rules, and the scenario that shows best what each prevents. doc/takes.md says why
 * each is there. */
#include "rules.h"

#include <string.h>

const struct rule_text rule_texts[RULE_COUNT] = {
    [RULE_COMPARE] = {"compare", "params", "answers of different versions are never joined"},
    [RULE_UNIT_LOCK] = {"unit-lock", "params",
                        "parameters are not copied while they are overwritten"},
    [RULE_HOLD_SET] = {"hold-set", "params", "the holds of an array are a set, not one slot"},
    [RULE_HOLD_BOUNDARY] = {"hold-boundary", "pins",
                            "a fixed take wants the content at the boundary, not version = gen"},
    [RULE_COPY_BEFORE] = {"copy-before-overwrite", "params",
                          "who overwrites makes the promised copies first"},
    [RULE_REGISTER_FIRST] = {"register-first", "edits",
                             "within a boundary holds are registered, then arrays mutated"},
    [RULE_TRY_CHECK] = {"try-check", "links", "an answer to an earlier try is ignored"},
    [RULE_TRY_ORDER] = {"try-order", "links",
                        "an earlier try never replaces the hold of a later one"},
    [RULE_SESSION_REPLY] = {"session-reply", "daemon", "an answer to an earlier daemon is ignored"},
    [RULE_SESSION_AGENDA] = {"session-agenda", "daemon-pin",
                             "an agenda item of a dead session is skipped"},
    [RULE_REASK] = {"reask-on-hello", "links", "a rank that connects again is asked again"},
    [RULE_REFIX] = {"refix-on-hello", "links-tail",
                    "when rank 0 connects again, takes that it was to fix start over"},
    [RULE_EPOCH_TAKES] = {"epoch-ends-takes", "world",
                          "the hello of a newer world ends older takes"},
    [RULE_EPOCH_REPORT] = {"epoch-report", "world", "a report of a replaced world is ignored"},
    [RULE_BARRIER] = {"barrier", "pauses", "all ranks have arrived before a boundary is reported"},
    [RULE_SECOND_BARRIER] = {"second-barrier", "edits",
                             "an edit or restore is reported when all ranks have done it"},
    [RULE_BELL_RANK0] = {"bell-from-rank0", "daemon-edit",
                         "rank 0 wakes the others, not the daemon"},
    [RULE_BELL_LATCH] = {"bell-latch", "pauses", "a bell rung before the sleep is not lost"},
    [RULE_EXECUTED_IDS] = {"executed-ids", "daemon-edit",
                           "rank 0 says at hello which commands it has executed"},
    [RULE_TAKEN_IDS] = {"taken-ids", "daemon-edit", "and which it has taken, but not executed yet"},
    [RULE_LEDGER_IDS] = {"ledger-ids", "daemon-edit",
                         "a command whose id is known attaches to the first"},
    [RULE_EDIT_WHOLE] = {"edit-whole", "edits", "an edit travels whole, in the agenda"},
    [RULE_OUTBOX] = {"outbox", "params", "a send to the daemon never blocks"},
    [RULE_RESERVE_FIRST] = {"reserve-first", "pins",
                            "a pin is reserved on all ranks before the agenda"},
    [RULE_OFFER_PINS] = {"offer-pins", "daemon-pin", "finished pins are offered to a new daemon"},
    [RULE_RELEASE_UNKNOWN] = {"release-unknown", "daemon-pin",
                              "an offered pin that nobody knows is released"},
    [RULE_GRAD_VALID] = {"grad-valid", "grads",
                         "a gradient is not copied before its last collective"},
    [RULE_GRAD_NONE] = {"grad-none", "restores", "a restore leaves no gradient"},
    [RULE_NONE_AT_ONCE] = {"none-at-once", "restores",
                           "without a gradient the answer is none, not later"},
    [RULE_CLIP_APART] = {"clip-apart", "grads", "clipping does not change the gradient in place"},
};

int rule_find(const char *name) {
    for (int i = 0; i < RULE_COUNT; i++)
        if (strcmp(rule_texts[i].name, name) == 0)
            return i;
    return -1;
}
