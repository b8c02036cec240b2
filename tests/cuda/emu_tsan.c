/* emu_tsan.c - where the calls of code that was compiled with -fsanitize=thread arrive, in place of
 * the sanitizer's own library; and the functions of the C library that such code calls by another
 * name (race.syms), since they touch memory or order threads. This file itself is not instrumented.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/cuda/emu_race_sync.h"

void __tsan_init(void);
void __tsan_init(void) {}

/* ---- plain accesses ---- */

#define ACCESS(bytes)                                                                              \
    void __tsan_read##bytes(void *p);                                                              \
    void __tsan_write##bytes(void *p);                                                             \
    void __tsan_unaligned_read##bytes(void *p);                                                    \
    void __tsan_unaligned_write##bytes(void *p);                                                   \
    void __tsan_read##bytes(void *p) { emu_race_access(p, bytes, false, false); }                  \
    void __tsan_write##bytes(void *p) { emu_race_access(p, bytes, true, false); }                  \
    void __tsan_unaligned_read##bytes(void *p) { emu_race_access(p, bytes, false, false); }        \
    void __tsan_unaligned_write##bytes(void *p) { emu_race_access(p, bytes, true, false); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes) { emu_race_access(p, bytes, false, false); }
void __tsan_write_range(void *p, size_t bytes) { emu_race_access(p, bytes, true, false); }
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}

/* ---- atomics ---- */

/* What threads know of each other, by the address of a mutex or an atomic. Places that share an
 * entry order more than they should, which hides races and invents none. */
enum { PLACES = 4096 };
static struct emu_clock *places[PLACES];

static struct emu_clock **place_of(const volatile void *p) {
    uintptr_t v = (uintptr_t)p;
    return &places[(v >> 4 ^ v >> 16) % PLACES];
}

/* Before and after an atomic: on watched memory it is an access of its own kind, which orders
 * nothing (a kernel's); elsewhere it is how host threads meet: who reads learns from who wrote
 * before. */
static void atomic_begin(const volatile void *p, size_t bytes, bool write) {
    if (emu_race_watches((const void *)p))
        emu_race_access((const void *)p, bytes, write, true);
    else if (write)
        emu_race_release(place_of(p));
}
static void atomic_end(const volatile void *p) {
    if (!emu_race_watches((const void *)p))
        emu_race_acquire(place_of(p));
}

#define ATOMIC_RMW(bits, name, builtin)                                                            \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *p, uint##bits##_t v,      \
                                                int order);                                        \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *p, uint##bits##_t v,      \
                                                int order) {                                       \
        (void)order;                                                                               \
        atomic_begin(p, sizeof(uint##bits##_t), true);                                             \
        uint##bits##_t was = builtin(p, v, __ATOMIC_SEQ_CST);                                      \
        atomic_end(p);                                                                             \
        return was;                                                                                \
    }
#define ATOMIC_CAS(bits, name)                                                                     \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile uint##bits##_t *p,                  \
                                                      uint##bits##_t *expected, uint##bits##_t v,  \
                                                      int order, int fail_order);                  \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile uint##bits##_t *p,                  \
                                                      uint##bits##_t *expected, uint##bits##_t v,  \
                                                      int order, int fail_order) {                 \
        (void)order, (void)fail_order;                                                             \
        atomic_begin(p, sizeof(uint##bits##_t), true);                                             \
        bool done = __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST,           \
                                                __ATOMIC_SEQ_CST);                                 \
        atomic_end(p);                                                                             \
        return done;                                                                               \
    }
#define ATOMICS(bits)                                                                              \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int order);        \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *p, int order) {       \
        (void)order;                                                                               \
        atomic_begin(p, sizeof(uint##bits##_t), false);                                            \
        uint##bits##_t v = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                   \
        atomic_end(p);                                                                             \
        return v;                                                                                  \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t v, int order);     \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *p, uint##bits##_t v, int order) {    \
        (void)order;                                                                               \
        atomic_begin(p, sizeof(uint##bits##_t), true);                                             \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    ATOMIC_RMW(bits, exchange, __atomic_exchange_n)                                                \
    ATOMIC_RMW(bits, fetch_add, __atomic_fetch_add)                                                \
    ATOMIC_RMW(bits, fetch_sub, __atomic_fetch_sub)                                                \
    ATOMIC_RMW(bits, fetch_and, __atomic_fetch_and)                                                \
    ATOMIC_RMW(bits, fetch_or, __atomic_fetch_or)                                                  \
    ATOMIC_RMW(bits, fetch_xor, __atomic_fetch_xor)                                                \
    ATOMIC_CAS(bits, strong)                                                                       \
    ATOMIC_CAS(bits, weak)
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_signal_fence(int order);
void __tsan_atomic_thread_fence(int order) {
    (void)order;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int order) { (void)order; }

/* ---- memory ---- */

void *race_memcpy(void *dst, const void *src, size_t n);
void *race_memmove(void *dst, const void *src, size_t n);
void *race_memset(void *dst, int v, size_t n);
int race_memcmp(const void *a, const void *b, size_t n);

void *race_memcpy(void *dst, const void *src, size_t n) {
    emu_race_access(src, n, false, false);
    emu_race_access(dst, n, true, false);
    return memcpy(dst, src, n);
}
void *race_memmove(void *dst, const void *src, size_t n) {
    emu_race_access(src, n, false, false);
    emu_race_access(dst, n, true, false);
    return memmove(dst, src, n);
}
void *race_memset(void *dst, int v, size_t n) {
    emu_race_access(dst, n, true, false);
    return memset(dst, v, n);
}
int race_memcmp(const void *a, const void *b, size_t n) {
    emu_race_access(a, n, false, false);
    emu_race_access(b, n, false, false);
    return memcmp(a, b, n);
}

/* ---- threads ---- */

int race_pthread_mutex_lock(pthread_mutex_t *m);
int race_pthread_mutex_trylock(pthread_mutex_t *m);
int race_pthread_mutex_unlock(pthread_mutex_t *m);
int race_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int race_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t);
int race_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*start)(void *),
                        void *arg);
int race_pthread_join(pthread_t thread, void **value);

int race_pthread_mutex_lock(pthread_mutex_t *m) {
    int rc = pthread_mutex_lock(m);
    emu_race_acquire(place_of(m));
    return rc;
}
int race_pthread_mutex_trylock(pthread_mutex_t *m) {
    int rc = pthread_mutex_trylock(m);
    if (rc == 0)
        emu_race_acquire(place_of(m));
    return rc;
}
int race_pthread_mutex_unlock(pthread_mutex_t *m) {
    emu_race_release(place_of(m));
    return pthread_mutex_unlock(m);
}
int race_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
    emu_race_release(place_of(m));
    int rc = pthread_cond_wait(c, m);
    emu_race_acquire(place_of(m));
    return rc;
}
int race_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
    emu_race_release(place_of(m));
    int rc = pthread_cond_timedwait(c, m, t);
    emu_race_acquire(place_of(m));
    return rc;
}

struct start {
    void *(*run)(void *);
    void *arg;
    struct emu_clock *before;
};

static struct emu_clock *thread_ends; /* what threads that ended knew */

static void *thread_main(void *arg) {
    struct start s = *(struct start *)arg;
    free(arg);
    emu_race_acquire(&s.before);
    free(s.before);
    void *value = s.run(s.arg);
    emu_race_release(&thread_ends);
    return value;
}

int race_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *),
                        void *arg) {
    struct start *s = malloc(sizeof *s);
    if (s == NULL)
        return ENOMEM;
    *s = (struct start){run, arg, NULL};
    emu_race_release(&s->before);
    int rc = pthread_create(out, attr, thread_main, s);
    if (rc != 0) {
        free(s->before);
        free(s);
    }
    return rc;
}

int race_pthread_join(pthread_t thread, void **value) {
    int rc = pthread_join(thread, value);
    emu_race_acquire(&thread_ends);
    return rc;
}

/* ---- descriptors: who reads may know what any writer before it knew ---- */

static struct emu_clock *written;

ssize_t race_read(int fd, void *p, size_t n);
ssize_t race_write(int fd, const void *p, size_t n);
ssize_t race_pread(int fd, void *p, size_t n, off_t at);
ssize_t race_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t race_pread64(int fd, void *p, size_t n, off_t at);
ssize_t race_pwrite64(int fd, const void *p, size_t n, off_t at);
ssize_t race_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t race_recvmsg(int fd, struct msghdr *m, int flags);
int race_poll(struct pollfd *fds, nfds_t n, int timeout);

ssize_t race_read(int fd, void *p, size_t n) {
    ssize_t got = read(fd, p, n);
    emu_race_acquire(&written);
    if (got > 0)
        emu_race_access(p, (size_t)got, true, false);
    return got;
}
ssize_t race_write(int fd, const void *p, size_t n) {
    emu_race_access(p, n, false, false);
    emu_race_release(&written);
    return write(fd, p, n);
}
ssize_t race_pread(int fd, void *p, size_t n, off_t at) {
    ssize_t got = pread(fd, p, n, at);
    if (got > 0)
        emu_race_access(p, (size_t)got, true, false);
    return got;
}
ssize_t race_pwrite(int fd, const void *p, size_t n, off_t at) {
    emu_race_access(p, n, false, false);
    return pwrite(fd, p, n, at);
}
/* The same, as the C library has them on 64-bit systems. */
ssize_t race_pread64(int fd, void *p, size_t n, off_t at) { return race_pread(fd, p, n, at); }
ssize_t race_pwrite64(int fd, const void *p, size_t n, off_t at) {
    return race_pwrite(fd, p, n, at);
}
ssize_t race_sendmsg(int fd, const struct msghdr *m, int flags) {
    for (size_t i = 0; i < m->msg_iovlen; i++)
        emu_race_access(m->msg_iov[i].iov_base, m->msg_iov[i].iov_len, false, false);
    emu_race_release(&written);
    return sendmsg(fd, m, flags);
}
ssize_t race_recvmsg(int fd, struct msghdr *m, int flags) {
    ssize_t got = recvmsg(fd, m, flags);
    emu_race_acquire(&written);
    return got;
}
int race_poll(struct pollfd *fds, nfds_t n, int timeout) {
    int rc = poll(fds, n, timeout);
    emu_race_acquire(&written);
    return rc;
}
