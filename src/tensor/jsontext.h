/* jsontext.h - strings as JSON text, for files that are written member by member. */
#ifndef GFS_TENSOR_JSONTEXT_H
#define GFS_TENSOR_JSONTEXT_H

#include "base/buf.h"

/* Appends s quoted and escaped. -EINVAL (and nothing appended) when s is not UTF-8; that memory ran
 * out is seen in out->failed. */
int jsontext_string(struct enc *out, const char *s);

#endif
