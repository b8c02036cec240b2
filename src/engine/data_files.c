/* data_files.c - finds the files of the training data, and brings them into memory. */
#include "config.h"

#include "engine/data_files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* Smaller files are read: a mapping has at least a page, and a process has not many of them. */
enum { DATA_MAP_BYTES = 1 << 16 };

/* llm.c: 256 words of header. */
enum {
    LLMC_MAGIC = 20240520,
    LLMC_HEADER_BYTES = 1024,
    LLMC_VERSION_U16 = 1,
    LLMC_VERSION_U32 = 7
};

static int no_memory(struct err *err) {
    (void)err_set(err, ENOMEM, "no memory for the list of data files");
    return -ENOMEM;
}

/* ---- a growing list of paths */

struct path_list {
    char **paths; /* owned */
    size_t count, cap;
};

static void path_list_free(struct path_list *l) {
    for (size_t i = 0; i < l->count; i++)
        free(l->paths[i]);
    free(l->paths);
    *l = (struct path_list){0};
}

/* Takes over path, also on failure. */
static int path_list_add(struct path_list *l, char *path) {
    if (path == NULL)
        return -ENOMEM;
    if (l->count == l->cap) {
        size_t cap = l->cap == 0 ? 64 : l->cap * 2;
        char **grown = reallocarray(l->paths, cap, sizeof *grown);
        if (grown == NULL) {
            free(path);
            return -ENOMEM;
        }
        l->paths = grown;
        l->cap = cap;
    }
    l->paths[l->count++] = path;
    return 0;
}

static char *path_join(const char *dir, const char *name) {
    size_t len = strlen(dir);
    bool slash = len > 0 && dir[len - 1] == '/';
    char *path = NULL;
    return asprintf(&path, "%s%s%s", dir, slash ? "" : "/", name) < 0 ? NULL : path;
}

static int path_compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- directories */

/* Adds the entries of one directory: regular files with content to `files`, directories to `dirs`.
 */
static int directory_read(const char *path, struct path_list *files, struct path_list *dirs,
                          struct err *err) {
    int rc = 0;
    DIR *dir = opendir(path);
    if (dir == NULL)
        return err_set(err, errno, "data %s: %s", path, strerror(errno));
    for (;;) {
        struct stat st;
        errno = 0;
        struct dirent *e = readdir(dir);
        if (e == NULL) {
            if (errno != 0)
                rc = err_set(err, errno, "data %s: %s", path, strerror(errno));
            break;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            rc = err_set(err, errno, "data %s/%s: %s", path, e->d_name, strerror(errno));
            break;
        }
        bool file = S_ISREG(st.st_mode) && st.st_size > 0;
        if (!file && !S_ISDIR(st.st_mode))
            continue;
        if (path_list_add(file ? files : dirs, path_join(path, e->d_name)) != 0) {
            rc = no_memory(err);
            break;
        }
    }
    closedir(dir);
    return rc;
}

/* Appends all files below a directory, sorted. */
static int directory_walk(const char *path, struct path_list *files, struct err *err) {
    struct path_list found = {0}, dirs = {0};
    int rc = path_list_add(&dirs, strdup(path)) != 0 ? no_memory(err) : 0;
    for (size_t i = 0; i < dirs.count && rc == 0; i++)
        rc = directory_read(dirs.paths[i], &found, &dirs, err);
    if (rc == 0 && found.count == 0)
        rc = err_set(err, EINVAL, "data %s: no file below this directory has any content", path);
    if (found.count > 1)
        qsort(found.paths, found.count, sizeof *found.paths, path_compare);
    for (size_t i = 0; i < found.count && rc == 0; i++) {
        rc = path_list_add(files, found.paths[i]) != 0 ? no_memory(err) : 0;
        found.paths[i] = NULL; /* moved */
    }
    path_list_free(&found);
    path_list_free(&dirs);
    return rc;
}

static int paths_expand(const char *paths, struct path_list *files, struct err *err) {
    char *copy = strdup(paths), *save = NULL;
    int rc = copy == NULL ? no_memory(err) : 0;
    for (char *p = rc == 0 ? strtok_r(copy, "\n", &save) : NULL; p != NULL && rc == 0;
         p = strtok_r(NULL, "\n", &save)) {
        struct stat st;
        if (stat(p, &st) != 0)
            rc = err_set(err, errno, "data %s: %s", p, strerror(errno));
        else if (S_ISDIR(st.st_mode))
            rc = directory_walk(p, files, err);
        else if (!S_ISREG(st.st_mode))
            rc = err_set(err, EINVAL, "data %s: neither a file nor a directory", p);
        else if (path_list_add(files, strdup(p)) != 0)
            rc = no_memory(err);
    }
    free(copy);
    if (rc == 0 && files->count == 0)
        rc = err_set(err, EINVAL, "no training data was given: data is empty");
    return rc;
}

/* ---- one file */

static int file_load(struct data_file *f, struct err *err) {
    struct stat st;
    int rc = 0;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, errno, "data %s: %s", f->path, strerror(errno));
    if (fstat(fd, &st) != 0) {
        rc = err_set(err, errno, "data %s: %s", f->path, strerror(errno));
        goto out;
    }
    if (st.st_size == 0) {
        rc = err_set(err, EINVAL, "data %s: this file is empty", f->path);
        goto out;
    }
    f->size_bytes = (uint64_t)st.st_size;
    if (st.st_size < DATA_MAP_BYTES) {
        f->bytes = malloc(f->size_bytes);
        rc = f->bytes == NULL ? -ENOMEM : file_pread_all(fd, f->bytes, f->size_bytes, 0);
    } else {
        void *base = mmap(NULL, f->size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (base == MAP_FAILED) {
            rc = -errno;
        } else {
            f->bytes = base;
            f->mapped = true;
        }
    }
    if (rc != 0)
        (void)err_set(err, -rc, "data %s: %s", f->path, strerror(-rc));
out:
    close(fd);
    return rc;
}

static uint32_t le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int file_parse_llmc(struct data_file *f, struct err *err) {
    uint32_t version = le32(f->bytes + 4), count = le32(f->bytes + 8);
    if (version != LLMC_VERSION_U16 && version != LLMC_VERSION_U32)
        return err_set(err, EINVAL,
                       "data %s: version %u of llm.c's format is not known (1 and 7 are)", f->path,
                       version);
    uint64_t width = version == LLMC_VERSION_U16 ? 2 : 4;
    uint64_t expected_bytes = LLMC_HEADER_BYTES + count * width;
    if (f->size_bytes != expected_bytes)
        return err_set(err, EINVAL,
                       "data %s: the header says %u tokens, which is %llu bytes, but the file has "
                       "%llu: it was cut, or is still being written",
                       f->path, count, (unsigned long long)expected_bytes,
                       (unsigned long long)f->size_bytes);
    f->kind = width == 2 ? DATA_U16 : DATA_U32;
    f->tokens = f->bytes + LLMC_HEADER_BYTES;
    f->token_count = count;
    return 0;
}

static int file_parse(struct data_file *f, struct err *err) {
    assert(f->bytes != NULL); /* loaded */
    size_t len = strlen(f->path);
    bool tokens = len >= 4 && strcmp(f->path + len - 4, ".bin") == 0;
    f->tokens = f->bytes;
    f->token_count = f->size_bytes;
    f->kind = DATA_TEXT;
    if (!tokens)
        return 0;
    if (f->size_bytes >= LLMC_HEADER_BYTES && le32(f->bytes) == LLMC_MAGIC)
        return file_parse_llmc(f, err);
    if (f->size_bytes % 2 != 0)
        return err_set(
            err, EINVAL,
            "data %s: a .bin file is read as tokens of two bytes, but this one has an odd "
            "number of bytes",
            f->path);
    f->kind = DATA_U16;
    f->token_count = f->size_bytes / 2;
    return 0;
}

int data_files_open(const char *paths, struct data_files *out, struct err *err) {
    struct path_list list = {0};
    struct data_files files = {0};
    int rc = paths_expand(paths, &list, err);
    if (rc == 0) {
        files.files = calloc(list.count + 1, sizeof *files.files);
        files.cap = list.count;
        if (files.files == NULL)
            rc = no_memory(err);
    }
    for (size_t i = 0; i < list.count && rc == 0; i++) {
        struct data_file *f = &files.files[files.count++];
        f->path = list.paths[i];
        list.paths[i] = NULL; /* moved */
        rc = file_load(f, err);
        if (rc == 0)
            rc = file_parse(f, err);
    }
    path_list_free(&list);
    if (rc != 0) {
        data_files_close(&files);
        return rc;
    }
    *out = files;
    return 0;
}

void data_files_close(struct data_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        struct data_file *f = &files->files[i];
        if (f->mapped)
            munmap(f->bytes, f->size_bytes);
        else
            free(f->bytes);
        free(f->path);
    }
    free(files->files);
    *files = (struct data_files){0};
}
