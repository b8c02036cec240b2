/* emu_race_none.c - no race detector. */
#include "config.h"

#include "tests/cuda/emu_race.h"

void *emu_race_place(size_t bytes) {
    (void)bytes;
    return NULL;
}
void emu_race_memory(const void *start, size_t bytes) { (void)start, (void)bytes; }
void emu_race_memory_gone(const void *start, size_t bytes) { (void)start, (void)bytes; }
struct emu_clock *emu_race_stream(uint32_t number) {
    (void)number;
    return NULL;
}
void emu_race_stream_gone(struct emu_clock *stream) { (void)stream; }
struct emu_clock *emu_race_host_now(void) {
    return NULL;
}
struct emu_clock *emu_race_stream_now(const struct emu_clock *stream) {
    (void)stream;
    return NULL;
}
void emu_race_stream_learns(struct emu_clock *stream, const struct emu_clock *from) {
    (void)stream, (void)from;
}
void emu_race_host_learns(const struct emu_clock *from) { (void)from; }
void emu_race_clock_free(struct emu_clock *c) { (void)c; }
void emu_race_begin_operation(struct emu_clock *stream, const char *name) {
    (void)stream, (void)name;
}
void emu_race_end_operation(void) {}
void emu_race_touch(const struct emu_range *r) { (void)r; }
void emu_race_begin_grid(const struct emu_kernel *k, uint32_t thread_count) {
    (void)k, (void)thread_count;
}
void emu_race_end_grid(void) {}
void emu_race_begin_block(void) {}
void emu_race_thread(uint32_t thread) { (void)thread; }
void emu_race_barrier(void) {}
void emu_race_syncwarp(uint32_t first_thread, uint32_t members) {
    (void)first_thread, (void)members;
}
size_t emu_race_count(void) { return 0; }
void emu_race_keep_going(bool keep) { (void)keep; }
