/* plugin_parts.h - what the plugin is built with, by configure. */
#ifndef GFS_DEVICE_CUDA_PLUGIN_PARTS_H
#define GFS_DEVICE_CUDA_PLUGIN_PARTS_H

#include <cuda_runtime_api.h>

#include "comm/collective.h"

#define PLUGIN_STRING_(x) #x
#define PLUGIN_STRING(x) PLUGIN_STRING_(x)

/* 13.0 of 13000 can't be had as text, so the two numbers stand as they are */
#ifdef HAVE_NCCL
#include <nccl.h>
extern const struct collective_ops collective_nccl; /* comm/nccl/nccl.c */
#define PLUGIN_COLLECTIVES (&collective_nccl)
#define PLUGIN_NCCL                                                                                \
    ", NCCL " PLUGIN_STRING(NCCL_MAJOR) "." PLUGIN_STRING(NCCL_MINOR) "." PLUGIN_STRING(NCCL_PATCH)
#else
#define PLUGIN_COLLECTIVES NULL
#define PLUGIN_NCCL ", no NCCL"
#endif

#define PLUGIN_BUILT "CUDA " GFS_CUDA_VERSION PLUGIN_NCCL ", " GFS_CUDA_TARGETS

#endif
