/* nccl.h - the table of comm/collective.h over NCCL, for the plugin. */
#ifndef GFS_COMM_NCCL_NCCL_H
#define GFS_COMM_NCCL_NCCL_H

#include "comm/collective.h"

extern const struct collective_ops collective_nccl;

#endif
