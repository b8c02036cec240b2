/* node_memory.c - memory that all ranks of a host map.
 *
 * An MPI window would lie in a file of /dev/shm: too small a /dev/shm is a SIGBUS with some MPIs, a
 * killed job leaves the file, and the parts are aligned to 8 bytes. A memfd has none of that, and
 * goes with the last process that maps it. */
#include "config.h"

#include "comm/node_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/world.h"

#define NODE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define NODE_HUGE_SHIFT 21
/* MFD_HUGE_2MB of linux/memfd.h: the logarithm of the page size, in the highest bits. */
#define NODE_MFD_HUGE (MFD_HUGETLB | ((unsigned)NODE_HUGE_SHIFT << 26))
#ifndef MADV_POPULATE_WRITE /* headers older than Linux 5.14; such a kernel refuses it */
#define MADV_POPULATE_WRITE 23
#endif

static size_t round_up(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

int node_memory_agree(int rc, struct err *err) {
    int worst = rc;
    int failed = world_least(&worst, err);
    if (failed != 0)
        return failed;
    if (worst != 0 && rc == 0)
        return err_set(err, -worst, "another rank could not share memory: %s", strerror(-worst));
    return rc;
}

static int node_make(size_t bytes, size_t page, unsigned flags, struct node_memory *m) {
    size_t size = round_up(bytes, page);
    int rc;
    int fd = memfd_create("gatherfs-node", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, NODE_SEALS) != 0) {
        rc = -errno;
        goto failed;
    }
    /* Mapping huge pages reserves them: there are enough, or this fails. */
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        rc = -errno;
        goto failed;
    }
    *m = (struct node_memory){.fd = fd, .base = base, .bytes = size, .page_bytes = page};
    return 0;
failed:
    close(fd);
    return rc;
}

static int node_create(size_t bytes, struct node_memory *m, struct err *err) {
    int rc = node_make(bytes, (size_t)1 << NODE_HUGE_SHIFT, NODE_MFD_HUGE, m);
    if (rc != 0) /* the host set no huge pages aside */
        rc = node_make(bytes, (size_t)sysconf(_SC_PAGESIZE), 0, m);
    if (rc != 0)
        return err_set(err, -rc, "%zu bytes of memory shared by the ranks of this host: %s", bytes,
                       strerror(-rc));
    (void)madvise(m->base, m->bytes, MADV_HUGEPAGE); /* only faster */
    return 0;
}

/* Where rank 0 keeps the memory. */
struct node_where {
    uint64_t pid, fd, bytes, page_bytes;
};

static int node_join(const struct node_where *w, struct node_memory *m, struct err *err) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)w->pid,
             (unsigned long long)w->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno,
                       "the memory of rank 0, %s: %s (ranks that cannot see each other's processes "
                       "need comm = mpi)",
                       path, strerror(errno));
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & NODE_SEALS) != NODE_SEALS || fstat(fd, &st) != 0 ||
        (uint64_t)st.st_size != w->bytes) {
        close(fd);
        return err_set(err, EPROTO, "%s is not the memory of rank 0: use comm = mpi", path);
    }
    void *base = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int code = errno;
        close(fd);
        return err_set(err, code, "mapping %s: %s", path, strerror(code));
    }
    (void)madvise(base, w->bytes, MADV_HUGEPAGE);
    *m = (struct node_memory){
        .fd = fd, .base = base, .bytes = w->bytes, .page_bytes = w->page_bytes};
    return 0;
}

int node_memory_open(uint32_t rank, size_t bytes, struct node_memory *out, struct err *err) {
    struct node_memory m = {.fd = -1};
    struct node_where where = {0};
    int rc = rank == 0 ? node_create(bytes, &m, err) : 0;
    if (rank == 0 && rc == 0)
        where = (struct node_where){(uint64_t)getpid(), (uint64_t)m.fd, m.bytes, m.page_bytes};
    int failed = world_broadcast(&where, sizeof where, 0, err);
    if (failed != 0) {
        node_memory_close(&m);
        return failed;
    }
    if (rank != 0 && where.bytes != 0)
        rc = node_join(&where, &m, err);
    rc = node_memory_agree(rc, err);
    if (rc != 0) {
        node_memory_close(&m);
        return rc;
    }
    *out = m;
    return 0;
}

int node_memory_claim(const struct node_memory *m, size_t from_bytes, size_t len_bytes,
                      struct err *err) {
    size_t from = from_bytes / m->page_bytes * m->page_bytes;
    size_t to = round_up(from_bytes + len_bytes, m->page_bytes);
    int rc = 0;
    if (len_bytes > 0 && fallocate(m->fd, 0, (off_t)from, (off_t)(to - from)) != 0) {
        int code = errno == ENOSPC ? ENOMEM : errno;
        rc = err_set(err, code, "%zu bytes of memory shared by the ranks of this host: %s",
                     m->bytes, strerror(code));
    } else if (len_bytes > 0) {
        /* maps the pages that are there now, before they are needed */
        (void)madvise(m->base + from, to - from, MADV_POPULATE_WRITE);
    }
    return rc;
}

void node_memory_close(struct node_memory *m) {
    if (m->base != NULL)
        munmap(m->base, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    *m = (struct node_memory){.fd = -1};
}
