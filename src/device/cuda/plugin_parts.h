/* plugin_parts.h - what the plugin is built with, by configure. */
#ifndef GFS_DEVICE_CUDA_PLUGIN_PARTS_H
#define GFS_DEVICE_CUDA_PLUGIN_PARTS_H

#include "comm/collective.h"

#define PLUGIN_STRING_(x) #x
#define PLUGIN_STRING(x) PLUGIN_STRING_(x)

#ifdef HAVE_NCCL
#include <nccl.h>

#include "comm/nccl/nccl.h"
#define PLUGIN_COLLECTIVES (&collective_nccl)
#define PLUGIN_NCCL                                                                                \
    "NCCL " PLUGIN_STRING(NCCL_MAJOR) "." PLUGIN_STRING(NCCL_MINOR) "." PLUGIN_STRING(NCCL_PATCH)
#else
#define PLUGIN_COLLECTIVES NULL
#define PLUGIN_NCCL "no NCCL"
#endif

/* The emulated plugin is compiled with another. */
#ifndef PLUGIN_TARGETS
#define PLUGIN_TARGETS GFS_CUDA_TARGETS
#endif

#define PLUGIN_BUILT "CUDA " GFS_CUDA_VERSION ", " PLUGIN_NCCL ", " PLUGIN_TARGETS

#endif
