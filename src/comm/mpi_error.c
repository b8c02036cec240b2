/* mpi_error.c - errors of MPI as errno with a sentence, and patient waiting. */
#include "config.h"

#include "comm/mpi_error.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <time.h>

#include "base/log.h"

static int mpi_errno(int rc) {
    static const struct {
        int class, code;
    } table[] = {
        {MPI_ERR_NO_MEM, ENOMEM}, {MPI_ERR_BUFFER, EINVAL}, {MPI_ERR_COUNT, EINVAL},
        {MPI_ERR_TYPE, EINVAL},   {MPI_ERR_COMM, EINVAL},   {MPI_ERR_RANK, EINVAL},
        {MPI_ERR_ROOT, EINVAL},   {MPI_ERR_ARG, EINVAL},    {MPI_ERR_TRUNCATE, EMSGSIZE},
        {MPI_ERR_ACCESS, EACCES},
    };
    int class = MPI_ERR_OTHER;
    if (MPI_Error_class(rc, &class) == MPI_SUCCESS)
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            if (table[i].class == class)
                return table[i].code;
    return EIO;
}

int mpi_check_err(int rc, const char *call, struct err *err) {
    if (rc == MPI_SUCCESS)
        return 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    (void)MPI_Error_string(rc, text, &len);
    return err_set(err, mpi_errno(rc), "%s: %s", call, text);
}

int mpi_check(int rc, const char *call) {
    struct err err = {0};
    if (mpi_check_err(rc, call, &err) == 0)
        return 0;
    log_error("%s", err.text);
    return -err.code;
}

/* MPI makes progress only while it is called: first without a pause, for peers that are on time,
 * then with sleeps that grow to a millisecond. */
int mpi_wait_idle(MPI_Request *request, const char *call) {
    enum { BUSY_TESTS = 2000, FIRST_NS = 20 * 1000, LAST_NS = 1000 * 1000 };
    long pause_ns = FIRST_NS;
    for (unsigned tests = 0;; tests++) {
        int done = 0;
        int rc = mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), call);
        if (rc != 0 || done)
            return rc;
        if (tests < BUSY_TESTS)
            continue;
        (void)nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns * 2 < LAST_NS ? pause_ns * 2 : LAST_NS;
    }
}

/* MPI's own waiting would keep the core: with more ranks than cores, from the rank it waits for. */
int mpi_wait_busy(MPI_Request *request, const char *call) {
    enum { BUSY_TESTS = 200 };
    for (unsigned tests = 0;; tests++) {
        int done = 0;
        int rc = mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), call);
        if (rc != 0 || done)
            return rc;
        if (tests >= BUSY_TESTS)
            (void)sched_yield();
    }
}
