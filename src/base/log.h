/* log.h - one line per event on stderr; the supervisor collects the stderr of its children in log/.
 */
#ifndef GFS_BASE_LOG_H
#define GFS_BASE_LOG_H

enum log_level { LEVEL_ERROR, LEVEL_WARN, LEVEL_INFO, LEVEL_DEBUG };

/* Names the component that stands in each line ("rank 1", "mountd"); the text is copied. */
void log_open(const char *component, enum log_level level);
void log_set_level(enum log_level level);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
