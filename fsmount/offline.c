/* offline.c - status and snapshots of a run directory that nobody trains in. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "fsmount/clock.h"
#include "fsmount/daemon.h"
#include "store/snapshot.h"

enum { OFFLINE_MAX_CONFIG_BYTES = 1 << 20, OFFLINE_TAIL_BYTES = 8192, OFFLINE_COLUMNS = 32 };

/* Splits a line at tabs, in place. */
static uint32_t split_tabs(char *line, char *fields[OFFLINE_COLUMNS]) {
    uint32_t n = 0;
    for (char *p = line; p != NULL && n < OFFLINE_COLUMNS;)
        fields[n++] = strsep(&p, "\t");
    return n;
}

static uint64_t as_u64(const char *s) {
    uint64_t v;
    return parse_u64(s, &v) == 0 ? v : 0;
}
static double as_f64(const char *s) {
    double v;
    return parse_f64(s, &v) == 0 ? v : NAN;
}

static void take_column(struct msg_status *m, const char *name, const char *value) {
    if (strcmp(name, "step") == 0)
        m->step = as_u64(value);
    else if (strcmp(name, "attempt") == 0)
        m->attempt = (uint32_t)as_u64(value);
    else if (strcmp(name, "epoch") == 0)
        m->epoch = as_u64(value);
    else if (strcmp(name, "gen") == 0)
        m->gen = as_u64(value);
    else if (strcmp(name, "loss") == 0)
        m->loss = as_f64(value);
    else if (strcmp(name, "grad_norm") == 0)
        m->grad_norm = as_f64(value);
    else if (strcmp(name, "clip_factor") == 0)
        m->clip_factor = as_f64(value);
    else if (strcmp(name, "lr") == 0)
        m->lr = as_f64(value);
    else if (strcmp(name, "step_seconds") == 0)
        m->step_seconds = as_f64(value);
    else if (strcmp(name, "time") == 0 && as_f64(value) > 0)
        m->time_ns = (uint64_t)(as_f64(value) * 1e9);
}

/* The last whole line of a text; NULL when there is none. Cut in place. */
static char *last_line(char *text) {
    char *end = strrchr(text, '\n');
    if (end == NULL)
        return NULL;
    *end = '\0';
    char *before = strrchr(text, '\n');
    return before != NULL ? before + 1 : text;
}

/* Values of the newest row of metrics.tsv, by the names in its first line. */
static void load_metrics(const char *run_dir, struct msg_status *m) {
    char path[MSG_PATH_BYTES + 16], head[2048], tail[OFFLINE_TAIL_BYTES + 1];
    char *names[OFFLINE_COLUMNS], *values[OFFLINE_COLUMNS];
    if (file_path(path, sizeof(path), "%s/metrics.tsv", run_dir) != 0)
        return;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return;
    if (fgets(head, sizeof(head), f) != NULL && fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f),
             from = size > OFFLINE_TAIL_BYTES ? size - OFFLINE_TAIL_BYTES : (long)strlen(head);
        size_t n = fseek(f, from, SEEK_SET) == 0 ? fread(tail, 1, OFFLINE_TAIL_BYTES, f) : 0;
        tail[n] = '\0';
        head[strcspn(head, "\n")] = '\0';
        char *row = last_line(tail);
        uint32_t count = row != NULL ? split_tabs(head, names) : 0;
        uint32_t have = row != NULL ? split_tabs(row, values) : 0;
        for (uint32_t i = 0; i < count && i < have; i++)
            take_column(m, names[i], values[i]);
    }
    fclose(f);
}

static int load_snapshots(struct daemon *d, struct msg_status *m, struct err *err) {
    struct snapshot_info *list = NULL;
    uint32_t count = 0, broken = 0;
    int rc = snapshot_list(d->run_dir, &list, &count, &broken, err);
    if (rc != 0)
        return rc;
    if (broken != 0)
        log_warn("%u directories in snapshots/ are not whole snapshots", broken);
    for (uint32_t i = 0; i < count; i++)
        bundles_add_snapshot(d->bundles, list[i].id, list[i].name);
    m->snapshot_count = count;
    if (count != 0) {
        const struct snapshot_info *newest = &list[count - 1];
        m->last_snapshot_step = newest->step;
        m->world_size = newest->world_size;
        m->step = newest->step;
        m->epoch = newest->epoch;
        m->gen = newest->gen;
        m->time_ns = newest->time_ns;
        m->attempt = newest->attempt;
    }
    free(list);
    return 0;
}

int daemon_load_offline(struct daemon *d, struct err *err) {
    struct msg_status *m = calloc(1, sizeof(*m));
    char path[MSG_PATH_BYTES + 16], *text = NULL;
    size_t len = 0;
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory");
    *m = (struct msg_status){.state = RUN_OFFLINE};
    m->loss = m->grad_norm = m->clip_factor = m->lr = NAN;
    m->tokens_per_second = m->step_seconds = m->eta_seconds = m->mfu = NAN;
    int rc = load_snapshots(d, m, err);
    if (rc == 0) {
        load_metrics(d->run_dir, m);
        struct err none = {0};
        if (file_path(path, sizeof(path), "%s/config", d->run_dir) == 0 &&
            file_read(path, OFFLINE_MAX_CONFIG_BYTES, &text, &len, &none) == 0)
            m->config = (struct blob){.data = (const uint8_t *)text, .len_bytes = len};
        struct err refused = {0};
        if (status_set(d->status, m, &refused) != 0)
            log_warn("%s", refused.text);
    }
    m->target = status_config(d->status)->steps;
    m->goal_step = m->target;
    m->config = (struct blob){0};
    if (rc == 0)
        rc = status_set(d->status, m, err);
    free(text);
    free(m);
    return rc;
}
