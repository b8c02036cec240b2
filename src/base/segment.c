/* segment.c - memfds that can neither shrink nor grow, and big private buffers. */
#include "config.h"

#include "base/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEGMENT_HUGE_BYTES = 2 << 20 };

static size_t segment_round(size_t bytes, size_t page) {
    return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

int segment_create(const char *name, size_t bytes, bool touch, struct segment *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX / 2 - page)
        return -ENOMEM;
    size_t size = segment_round(bytes, page);
    int rc = 0;
    void *base = MAP_FAILED;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    /* fallocate now: a page that cannot be had must be an error here and not SIGBUS at a copy. */
    if (fallocate(fd, 0, 0, (off_t)size) != 0) {
        rc = errno == ENOSPC ? -ENOMEM : -errno;
        goto failed;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        rc = -errno;
        goto failed;
    }
    base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | (touch ? MAP_POPULATE : 0), fd, 0);
    if (base == MAP_FAILED) {
        rc = -errno;
        goto failed;
    }
    *out = (struct segment){.fd = fd, .base = base, .bytes = size};
    return 0;
failed:
    close(fd);
    return rc;
}

int segment_adopt(int fd, size_t min_bytes, bool writable, struct segment *out) {
    struct stat st;
    int rc = -EPROTO;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 || st.st_size <= 0 ||
        (uint64_t)st.st_size < min_bytes)
        goto failed;
    size_t size = (size_t)st.st_size;
    void *base = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        rc = -errno;
        goto failed;
    }
    *out = (struct segment){.fd = fd, .base = base, .bytes = size};
    return 0;
failed:
    close(fd);
    return rc;
}

void segment_close(struct segment *s) {
    if (s->base != NULL)
        munmap(s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    *s = SEGMENT_EMPTY;
}

void *segment_private_alloc(size_t bytes) {
    if (bytes == 0)
        bytes = 1;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t size = segment_round(bytes, SEGMENT_HUGE_BYTES);
    /* One huge page more, so that the part handed out starts at a huge page: else its first 2 MiB
     * are small pages. */
    uint8_t *raw = mmap(NULL, size + SEGMENT_HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    uintptr_t start =
        ((uintptr_t)raw + SEGMENT_HUGE_BYTES - 1) / SEGMENT_HUGE_BYTES * SEGMENT_HUGE_BYTES;
    size_t before = start - (uintptr_t)raw;
    if (before != 0)
        munmap(raw, before);
    if (SEGMENT_HUGE_BYTES - before != 0)
        munmap((uint8_t *)start + size, SEGMENT_HUGE_BYTES - before);
    (void)madvise((void *)start, size, MADV_HUGEPAGE); /* only faster */
    return (void *)start;
}

void segment_private_free(void *p, size_t bytes) {
    if (p != NULL)
        munmap(p, segment_round(bytes == 0 ? 1 : bytes, SEGMENT_HUGE_BYTES));
}
