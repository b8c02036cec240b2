/* parse.h - strict parsing of what people and peers write: whole string or nothing. */
#ifndef GFS_BASE_PARSE_H
#define GFS_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal digits only. -EINVAL syntax, -ERANGE beyond u64. */
int parse_u64(const char *s, uint64_t *out);
/* A finite decimal number (strtod in the C locale, no hex, no inf, no nan). -EINVAL, -ERANGE. */
int parse_f64(const char *s, double *out);
/* Bytes: digits with an optional K, M, G or T (powers of 1024). -EINVAL, -ERANGE. */
int parse_bytes(const char *s, uint64_t *out);

/* Names of snapshots and pins: [A-Za-z0-9_][A-Za-z0-9._-]{0,99}. */
enum { NAME_MAX_BYTES = 100 };
bool parse_name_ok(const char *s);
/* Command ids: 1..64 of [A-Za-z0-9._:-]. */
enum { COMMAND_ID_MAX_BYTES = 64 };
bool parse_command_id_ok(const char *s);

/* "1.5 GiB", "12 KiB" for people. */
void parse_format_bytes(uint64_t bytes, char *out, size_t cap_bytes);
/* "3h02m", "41s" for people. */
void parse_format_seconds(double seconds, char *out, size_t cap_bytes);

#endif
