/* plan.c - `gatherfs plan`: arithmetic on the layout of a model. */
#include "config.h"

#include "engine/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/knobs.h"
#include "base/parse.h"
#include "device/device.h"
#include "engine/gpu_list.h"
#include "engine/schedule.h"
#include "model/model.h"
#include "shard/wrap.h"

static int plan_option(struct config *c, const char *name, const char *value, struct err *err) {
    if (strcmp(name, "set") == 0) {
        char knob[64];
        const char *equals = strchr(value, '=');
        if (equals == NULL || (size_t)(equals - value) >= sizeof(knob))
            return err_set(err, EINVAL, "--set %s: expected KNOB=VALUE", value);
        memcpy(knob, value, (size_t)(equals - value));
        knob[equals - value] = '\0';
        const struct knob *k = knob_find(knob);
        if (k == NULL)
            return err_set(err, EINVAL, "--set %s: there is no knob %s", value, knob);
        return config_set(c, k, equals + 1, err);
    }
    const struct knob *k = knob_find_option(name);
    if (k == NULL)
        return err_set(err, EINVAL, "--%s: no such option; plan takes those of `gatherfs run`",
                       name);
    return config_set(c, k, value, err);
}

static int plan_options(struct config *c, int argc, char **argv, struct err *err) {
    for (int i = 0; i < argc; i++) {
        char name[64];
        if (strncmp(argv[i], "--", 2) != 0)
            return err_set(err, EINVAL,
                           "%s: plan takes only options (as --model gpt2:124M --ranks 8)", argv[i]);
        const char *equals = strchr(argv[i], '=');
        size_t n = equals != NULL ? (size_t)(equals - argv[i]) - 2 : strlen(argv[i]) - 2;
        if (n >= sizeof(name))
            return err_set(err, EINVAL, "%s: no such option", argv[i]);
        memcpy(name, argv[i] + 2, n);
        name[n] = '\0';
        if (equals == NULL && i + 1 >= argc)
            return err_set(err, EINVAL, "--%s: its value is missing", name);
        int rc = plan_option(c, name, equals != NULL ? equals + 1 : argv[++i], err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void plan_bytes(const char *what, uint64_t bytes) {
    char text[32];
    parse_format_bytes(bytes, text, sizeof(text));
    printf("  %-44s %16llu  %s\n", what, (unsigned long long)bytes, text);
}

static void plan_units(const struct layout *l) {
    printf("%-32s %8s %16s %16s %14s\n", "unit", "tensors", "parameters", "elements a rank",
           "padding");
    for (uint32_t u = 0; u < l->unit_count; u++) {
        const struct layout_unit *unit = &l->units[u];
        printf("%-32s %8u %16llu %16llu %14llu\n", unit->name, unit->tensor_count,
               (unsigned long long)unit->numel, (unsigned long long)unit->shard_elems,
               (unsigned long long)(unit->shard_elems * l->world_size - unit->numel));
    }
}

static void plan_memory(const struct layout *l, enum dtype t, enum dtype g, uint64_t arena_bytes,
                        uint64_t micro, uint64_t seq_len) {
    uint64_t shard = 0, largest = 0, second = 0; /* elements */
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint64_t full = l->units[u].shard_elems * l->world_size;
        shard += l->units[u].shard_elems;
        if (u == 0)
            continue;
        if (full > largest) {
            second = largest;
            largest = full;
        } else if (full > second) {
            second = full;
        }
    }
    uint64_t gathered = l->units[0].shard_elems * l->world_size + largest + second;
    uint64_t copy_bytes = t == DTYPE_F32 ? 0 : shard * dtype_bytes(t);
    uint64_t shard_bytes = shard * TENSOR_ELEM_BYTES;
    char line[64];
    printf("\nbytes a rank of %u\n", l->world_size);
    plan_bytes("params (shard, f32)", shard_bytes);
    plan_bytes("grads (shard, f32)", shard_bytes);
    plan_bytes("exp_avg (shard, f32)", shard_bytes);
    plan_bytes("exp_avg_sq (shard, f32)", shard_bytes);
    snprintf(line, sizeof(line), "params as gathered (shard, %s)", dtype_name(t));
    if (copy_bytes > 0)
        plan_bytes(line, copy_bytes);
    snprintf(line, sizeof(line), "gathered: root and two units (%s)", dtype_name(t));
    plan_bytes(line, gathered * dtype_bytes(t));
    snprintf(line, sizeof(line), "their gradients (%s)", dtype_name(g));
    plan_bytes(line, gathered * dtype_bytes(g));
    snprintf(line, sizeof(line), "activations of %llu x %llu tokens (%s)",
             (unsigned long long)micro, (unsigned long long)seq_len, dtype_name(t));
    plan_bytes(line, arena_bytes);
    plan_bytes("sum", 4 * shard_bytes + copy_bytes + gathered * (dtype_bytes(t) + dtype_bytes(g)) +
                          arena_bytes);
    plan_bytes("more while a pin or a snapshot is held", 4 * shard_bytes);
}

static int plan_print(struct config *c, bool gpu, struct err *err) {
    char *text = NULL;
    struct model *m = NULL;
    struct layout l = {0};
    struct tensor_spec *specs = NULL;
    struct device *dev = NULL;
    int rc = model_config_text(c->model, &text, err);
    if (rc == 0)
        rc = model_open(text, &m, err);
    if (rc != 0)
        goto out;
    uint32_t count = model_tensor_count(m);
    specs = calloc((size_t)count + 1, sizeof(*specs));
    if (specs == NULL) {
        rc = err_set(err, ENOMEM, "no memory for the plan");
        goto out;
    }
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(m)[i].spec;
    rc = wrap_layout(c->wrap, specs, count, model_modules(m), model_module_count(m),
                     (uint32_t)c->ranks, &l, err);
    if (rc == 0)
        rc = device_cpu.open(&(struct device_args){.threads = 1}, &dev, err);
    if (rc != 0)
        goto out;
    uint64_t seq_len = c->seq_len != 0 ? c->seq_len : model_context(m);
    uint64_t micro = batch_share_of(c->global_batch, seq_len, c->micro_batch,
                                    gpu ? MICRO_TOKENS_GPU : MICRO_TOKENS, 0, (uint32_t)c->ranks)
                         .micro;
    printf("%s: %s, %llu parameters in %u tensors, vocabulary %zu, context %zu; wrap %s\n\n",
           c->model, model_kind(m), (unsigned long long)layout_numel(&l), l.tensor_count,
           model_vocab(m), model_context(m), c->wrap);
    plan_units(&l);
    enum dtype t = strcmp(c->dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    enum dtype g = strcmp(c->reduce_dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    plan_memory(&l, t, g, model_arena_bytes(m, &device_cpu, dev, t, micro, seq_len), micro,
                seq_len);
    uint64_t state_bytes = 16 * layout_numel(&l);
    printf("\nstate of the world: %llu bytes (16 a parameter)\n", (unsigned long long)state_bytes);
out:
    if (dev != NULL)
        device_cpu.close(dev);
    layout_free(&l);
    free(specs);
    model_close(m);
    free(text);
    return rc;
}

/* As a run here would choose them. Whether it is for GPUs: where they are asked for and there are
 * none the plan is still of them. */
static bool plan_ranks(struct config *c) {
    uint32_t gpus = 0;
    if (strcmp(c->device, "cpu") != 0)
        (void)gpu_count(c->device, &gpus, NULL);
    c->ranks = config_ranks(c, gpus);
    return gpus > 0 || (strcmp(c->device, "cpu") != 0 && strcmp(c->device, "auto") != 0);
}

int plan_main(int argc, char **argv) {
    struct config c;
    struct err err = {0};
    config_defaults(&c);
    if (plan_options(&c, argc, argv, &err) != 0 || config_check(&c, &err) != 0) {
        fprintf(stderr, "gatherfs plan: %s\n", err.text);
        return 2;
    }
    bool gpu = plan_ranks(&c);
    if (plan_print(&c, gpu, &err) != 0) {
        fprintf(stderr, "gatherfs plan: %s\n", err.text);
        return 1;
    }
    return 0;
}
