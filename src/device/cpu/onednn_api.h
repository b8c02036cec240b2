/* onednn_api.h - what onednn_v2.c and onednn_v3.c do in their own way; needs HAVE_ONEDNN. */
#ifndef GFS_DEVICE_CPU_ONEDNN_API_H
#define GFS_DEVICE_CPU_ONEDNN_API_H

#include "config.h"

#ifdef HAVE_ONEDNN

#include <dnnl.h>

#include "device/cpu/onednn.h"

/* The code for a product in one thread, and the scratch that it wants. NULL, or the call that
 * failed. */
const char *onednn_primitive(dnnl_engine_t engine, const struct onednn_shape *s,
                             dnnl_primitive_t *out, size_t *scratch_bytes);
/* A memory object of a matrix (rows, columns), trans: stored as (columns, rows), in rows of ld
 * elements; its address is set later. false: no memory. */
bool onednn_memory(dnnl_engine_t engine, size_t rows, size_t columns, size_t ld, bool trans,
                   enum dtype t, dnnl_memory_t *out);
bool onednn_memory_bytes(dnnl_engine_t engine, size_t bytes, dnnl_memory_t *out);

/* onednn_threads.c: how many threads oneDNN may use when this one calls it: makes it one and
 * returns what it was; sets it again. */
int onednn_one_thread(void);
void onednn_threads(int threads);

#endif
#endif
