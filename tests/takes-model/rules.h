/* The rules of the protocol that can be left out, one at a time, to see what each prevents. */
#ifndef TAKES_MODEL_RULES_H
#define TAKES_MODEL_RULES_H

enum rule {
    RULE_COMPARE,
    RULE_UNIT_LOCK,
    RULE_HOLD_SET,
    RULE_HOLD_BOUNDARY,
    RULE_COPY_BEFORE,
    RULE_REGISTER_FIRST,
    RULE_TRY_CHECK,
    RULE_TRY_ORDER,
    RULE_SESSION_REPLY,
    RULE_SESSION_AGENDA,
    RULE_REASK,
    RULE_REFIX,
    RULE_EPOCH_TAKES,
    RULE_EPOCH_REPORT,
    RULE_BARRIER,
    RULE_SECOND_BARRIER,
    RULE_BELL_RANK0,
    RULE_BELL_LATCH,
    RULE_EXECUTED_IDS,
    RULE_TAKEN_IDS,
    RULE_LEDGER_IDS,
    RULE_EDIT_WHOLE,
    RULE_OUTBOX,
    RULE_RESERVE_FIRST,
    RULE_OFFER_PINS,
    RULE_RELEASE_UNKNOWN,
    RULE_GRAD_VALID,
    RULE_GRAD_NONE,
    RULE_NONE_AT_ONCE,
    RULE_CLIP_APART,
    RULE_COUNT
};

struct rule_text {
    const char *name;
    const char *scenario;
    const char *text;
};

extern const struct rule_text rule_texts[RULE_COUNT];

/* The rule of that name, or -1. */
int rule_find(const char *name);

#endif
