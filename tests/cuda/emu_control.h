/* emu_control.h - the settings of the emulated devices, for tests. Each is also an environment
 * variable, read once at the first call of any double:
 *
 *   EMU_DEVICES=1            how many devices, at most 16
 *   EMU_MEMORY=BYTES         of each device (1 GiB); cudaMalloc beyond fails
 *   EMU_ORDER=lazy           lazy, eager or random (emu_stream.h)
 *   EMU_THREADS=asc          order of a block's threads: asc, desc or random
 *   EMU_SEED=1               of both random orders
 *   EMU_STRICT=0             1: what CUDA allows but is seldom meant ends the program
 *   EMU_FAIL_AT=N[:ERROR]    the Nth modelled call from now (from 1) fails, with this error
 *   EMU_NO_DEVICE=1          cudaErrorNoDevice, as on a host with a driver and no GPU
 *   EMU_DRIVER_OLD=1         cudaErrorInsufficientDriver, as without a driver
 *   EMU_EXCLUSIVE=1          cudaErrorDeviceUnavailable: another process has the device for itself
 *
 * A value that is not understood ends the program. */
#ifndef GFS_TESTS_CUDA_EMU_CONTROL_H
#define GFS_TESTS_CUDA_EMU_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum emu_order { EMU_LAZY, EMU_EAGER, EMU_RANDOM };
enum emu_thread_order { EMU_ASC, EMU_DESC, EMU_SHUFFLED };

/* May be changed at any time, but devices and memory_bytes only while nothing is allocated. */
struct emu_settings {
    int devices;
    size_t memory_bytes;
    enum emu_order order;
    enum emu_thread_order threads;
    uint64_t seed;
    bool strict;
    bool no_device, driver_old, exclusive;
};
struct emu_settings emu_get_settings(void);
void emu_set_settings(const struct emu_settings *s);

/* The nth call from now fails (1: the next); 0: none. error: its name, copied; NULL or "": a likely
 * one. Errors that stuck to devices are forgotten, as by a new process. */
void emu_fail_at(uint64_t nth, const char *error);
/* How many calls that can fail there were since the start or the last emu_fail_at. */
uint64_t emu_call_count(void);
/* The call that was made to fail, "" if none was yet. */
const char *emu_failed_call(void);

/* What is open: allocations and registrations, streams, events, and operations that never ran.
 * Each is named on stderr when `print`. */
size_t emu_leaks(bool print);
/* How many operations ran; the same schedule gives the same number. */
uint64_t emu_operations_run(void);

#endif
