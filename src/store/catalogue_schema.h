/* catalogue_schema.h - run.db as a file: opening, making, putting aside. */
#ifndef GFS_STORE_CATALOGUE_SCHEMA_H
#define GFS_STORE_CATALOGUE_SCHEMA_H

#include <sqlite3.h>
#include <stdbool.h>

#include "base/err.h"

/* An errno for a result code of SQLite. */
int catalogue_errno(int sqlite_code);
/* True when the file can't be used again: it is damaged, or not a database. */
bool catalogue_is_broken(int sqlite_code);

/* Opens run.db, or makes it; one that is broken or not ours is renamed to run.db.broken-N first.
 * -errno. */
int catalogue_schema_open(const char *run_dir, sqlite3 **db, struct err *err);
/* Renames run.db, with its journals, to run.db.broken-N. It must be closed. */
int catalogue_schema_put_aside(const char *run_dir, struct err *err);

#endif
