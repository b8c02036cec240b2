/* catalogue_image.c - run.db at one moment, as one file. */
#include "config.h"

#include <stdbool.h>

#include "base/file.h"
#include "store/catalogue.h"
#include "store/catalogue_schema.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IMAGE_HEADER_BYTES = 100,
    IMAGE_WRITE_VERSION = 18,
    IMAGE_READ_VERSION = 19,
    IMAGE_BUSY_MS = 100
};

/* A path as the file part of an SQLite URI. */
static int image_uri(const char *run_dir, char *out, size_t cap_bytes) {
    static const char hex[] = "0123456789abcdef";
    char *path = realpath(run_dir, NULL);
    if (path == NULL)
        return -errno;
    size_t n = (size_t)snprintf(out, cap_bytes, "file://");
    for (const char *p = path; *p != '\0' && n + 4 < cap_bytes; p++) {
        if (strchr("%?#", *p) == NULL) {
            out[n++] = *p;
            continue;
        }
        out[n++] = '%';
        out[n++] = hex[(unsigned char)*p >> 4];
        out[n++] = hex[(unsigned char)*p & 15];
    }
    free(path);
    return file_path(out + n, cap_bytes - n, "/run.db");
}

static int image_serialize(const char *uri, unsigned char **data, sqlite3_int64 *bytes) {
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(
        uri, &db,
        SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(db, 1);
        sqlite3_busy_timeout(db, IMAGE_BUSY_MS);
        /* One read transaction around it: serializing by itself would not say why it failed. */
        rc = sqlite3_exec(db, "BEGIN; SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    }
    if (rc == SQLITE_OK) {
        *data = sqlite3_serialize(db, "main", bytes, 0);
        rc = *data != NULL ? SQLITE_OK : SQLITE_NOMEM;
    }
    sqlite3_close(db);
    return rc;
}

int catalogue_image(const char *run_dir, uint8_t **image, size_t *len_bytes, struct err *err) {
    char uri[3 * PATH_MAX];
    unsigned char *data = NULL;
    sqlite3_int64 bytes = 0;
    int rc = image_uri(run_dir, uri, sizeof(uri) - sizeof("?immutable=1"));
    if (rc != 0)
        return err_set(err, -rc, "%s: %s", run_dir, strerror(-rc));
    int code = image_serialize(uri, &data, &bytes);
    int primary = code & 0xff;
    if (primary == SQLITE_CANTOPEN || primary == SQLITE_READONLY) {
        /* Where nothing may be written, not even the index of the journal, nobody else writes. */
        size_t len = strlen(uri);
        snprintf(uri + len, sizeof(uri) - len, "?immutable=1");
        code = image_serialize(uri, &data, &bytes);
    }
    if (code != SQLITE_OK)
        return err_set(err, (code & 0xff) == SQLITE_CANTOPEN ? ENOENT : catalogue_errno(code),
                       "%s/run.db: cannot be read: %s", run_dir, sqlite3_errstr(code));
    uint8_t *copy = malloc((size_t)bytes + 1);
    if (copy != NULL)
        memcpy(copy, data, (size_t)bytes);
    sqlite3_free(data);
    if (copy == NULL)
        return err_set(err, ENOMEM, "no memory for the image of run.db");
    if (bytes >= IMAGE_HEADER_BYTES) {
        /* 2 would mean WAL, which needs files beside it that can be written. */
        copy[IMAGE_WRITE_VERSION] = 1;
        copy[IMAGE_READ_VERSION] = 1;
    }
    *image = copy;
    *len_bytes = (size_t)bytes;
    return 0;
}
