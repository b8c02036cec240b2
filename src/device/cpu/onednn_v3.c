/* onednn_v3.c - oneDNN's version 3. */
#include "config.h"

#include "device/cpu/onednn_api.h"

#ifdef HAVE_ONEDNN
#if DNNL_VERSION_MAJOR == 3

/* (rows, columns), or what is stored transposed. */
static dnnl_status_t matrix(dnnl_memory_desc_t *out, size_t rows, size_t columns, size_t ld,
                            bool trans, enum dtype t) {
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dims_t along = {(dnnl_dim_t)ld, 1}, across = {1, (dnnl_dim_t)ld};
    return dnnl_memory_desc_create_with_strides(
        out, 2, dims, t == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32, trans ? across : along);
}

static void forget(dnnl_memory_desc_t d) {
    if (d != NULL)
        dnnl_memory_desc_destroy(d);
}

bool onednn_memory(dnnl_engine_t engine, size_t rows, size_t columns, size_t ld, bool trans,
                   enum dtype t, dnnl_memory_t *out) {
    dnnl_memory_desc_t d = NULL;
    bool made = matrix(&d, rows, columns, ld, trans, t) == dnnl_success &&
                dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE) == dnnl_success;
    forget(d);
    return made;
}

bool onednn_memory_bytes(dnnl_engine_t engine, size_t bytes, dnnl_memory_t *out) {
    dnnl_memory_desc_t d = NULL;
    const dnnl_dims_t dims = {(dnnl_dim_t)bytes};
    bool made = dnnl_memory_desc_create_with_tag(&d, 1, dims, dnnl_u8, dnnl_a) == dnnl_success &&
                dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE) == dnnl_success;
    forget(d);
    return made;
}

static dnnl_status_t attributes(const struct onednn_shape *s, dnnl_primitive_attr_t *out) {
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t rc = dnnl_primitive_attr_create(out);
    if (rc != dnnl_success)
        return rc;
    rc = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (rc == dnnl_success)
        rc = dnnl_post_ops_create(&ops);
    if (rc == dnnl_success && s->alpha != 1)
        rc = dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, s->alpha, 0);
    if (rc == dnnl_success && s->beta != 0)
        rc = dnnl_post_ops_append_sum(ops, s->beta, 0, dnnl_data_type_undef);
    if (rc == dnnl_success)
        rc = dnnl_primitive_attr_set_post_ops(*out, ops);
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    return rc;
}

static dnnl_status_t describe(dnnl_engine_t engine, const struct onednn_shape *s,
                              const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out) {
    dnnl_memory_desc_t a = NULL, b = NULL, c = NULL;
    dnnl_status_t rc = matrix(&a, s->m, s->k, s->lda, s->trans_a, DTYPE_BF16);
    if (rc == dnnl_success)
        rc = matrix(&b, s->k, s->n, s->ldb, s->trans_b, DTYPE_BF16);
    if (rc == dnnl_success)
        rc = matrix(&c, s->m, s->n, s->ldc, false, s->c_dtype);
    if (rc == dnnl_success)
        rc = dnnl_matmul_primitive_desc_create(out, engine, a, b, NULL, c, attr);
    forget(a);
    forget(b);
    forget(c);
    return rc;
}

const char *onednn_primitive(dnnl_engine_t engine, const struct onednn_shape *s,
                             dnnl_primitive_t *out, size_t *scratch_bytes) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    const char *what = NULL;
    if (attributes(s, &attr) != dnnl_success)
        what = "dnnl_primitive_attr_create";
    else if (describe(engine, s, attr, &desc) != dnnl_success)
        what = "dnnl_primitive_desc_create";
    else if (dnnl_primitive_create(out, desc) != dnnl_success)
        what = "dnnl_primitive_create";
    else
        *scratch_bytes = dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    if (desc != NULL)
        dnnl_primitive_desc_destroy(desc);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    return what;
}

#endif
#endif
