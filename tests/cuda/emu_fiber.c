/* emu_fiber.c - switching stacks on x86-64: the registers that a function must preserve, no more
 * (ucontext also saves the signal mask, a system call each time, and is 50 times slower). */
#include "config.h"

#include "tests/cuda/emu_fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "the emulation switches stacks on x86-64 only"
#endif

#include "tests/cuda/emu_fiber_sanitizer.h"

/* The guard is larger than most frames, which could step over a small one. Stacks begin at
 * different places of their top page, else all of them share a few lines of the cache. */
enum { COLOUR_BYTES = 7 * 64, GUARD_BYTES = 64 << 10 };
enum { SLOT_BYTES = EMU_FIBER_STACK_BYTES + GUARD_BYTES };

/* Saves the caller's registers and stack in *from and goes on where `to` was saved. */
void emu_fiber_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emu_fiber_switch\n"
        ".hidden emu_fiber_switch\n"
        ".type emu_fiber_switch, @function\n"
        "emu_fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    popq %rcx\n"
        "    jmp *%rcx\n" /* not ret, whose guess would always be wrong */
        ".size emu_fiber_switch, . - emu_fiber_switch\n");

/* slab: EMU_FIBER_MAX slots, each a guard and a stack above it. Stacks are taken last in,
 * first out: threads that never wait all use one stack, which stays in the cache. */
static unsigned char *slab;
static int free_stacks[EMU_FIBER_MAX];
static int free_count;

static struct emu_fiber *current;
static void *host_sp;
static void (*start_entry)(void *arg);
static void *start_arg;
static struct emu_fiber_host host;

static void make_slab(void) {
    size_t bytes = (size_t)EMU_FIBER_MAX * SLOT_BYTES;
    slab = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (slab == MAP_FAILED) {
        fprintf(stderr, "emulation: no memory for the stacks of a block\n");
        abort();
    }
    for (int i = 0; i < EMU_FIBER_MAX; i++) {
        mprotect(slab + (size_t)i * SLOT_BYTES, GUARD_BYTES, PROT_NONE);
        free_stacks[i] = EMU_FIBER_MAX - 1 - i;
    }
    free_count = EMU_FIBER_MAX;
}

static unsigned char *stack_bottom(int stack) {
    return slab + (size_t)stack * SLOT_BYTES + GUARD_BYTES;
}

bool emu_fiber_is_guard(const void *p) {
    uintptr_t at = (uintptr_t)p - (uintptr_t)slab;
    return slab != NULL && at < (uintptr_t)EMU_FIBER_MAX * SLOT_BYTES &&
           at % SLOT_BYTES < GUARD_BYTES;
}

/* To the fiber f, and back when it waits or ends. */
static void enter(struct emu_fiber *f) {
    struct emu_fiber *outer = current;
    current = f;
    emu_fiber_entering(&host, f, stack_bottom(f->stack));
    emu_fiber_switch(&host_sp, f->sp);
    emu_fiber_left(&host);
    current = outer;
}

static void fiber_main(void) {
    struct emu_fiber *f = current;
    emu_fiber_entered(&host, f);
    start_entry(start_arg);
    free_stacks[free_count++] = f->stack;
    f->stack = -1;
    emu_fiber_leaving(&host, f, true);
    emu_fiber_switch(&f->sp, host_sp);
    abort(); /* an ended fiber is never resumed */
}

void emu_fiber_start(struct emu_fiber *f, void (*entry)(void *arg), void *arg) {
    if (slab == NULL)
        make_slab();
    if (free_count == 0)
        abort(); /* a block has at most EMU_FIBER_MAX threads, and blocks run one at a time */
    f->stack = free_stacks[--free_count];
    f->sanitizer = NULL;
    start_entry = entry;
    start_arg = arg;
    /* As emu_fiber_switch leaves it: six registers, the address to go to, and above that the return
     * address of fiber_main (none), which leaves the stack aligned as at any function's entry. */
    size_t below_top = 64 + (size_t)f->stack * COLOUR_BYTES % 4096;
    void **sp = (void **)(void *)(stack_bottom(f->stack) + EMU_FIBER_STACK_BYTES - below_top);
    sp[6] = (void *)(uintptr_t)fiber_main;
    sp[7] = NULL;
    f->sp = sp;
    enter(f);
}

void emu_fiber_resume(struct emu_fiber *f) { enter(f); }

void emu_fiber_wait(void) {
    struct emu_fiber *f = current;
    emu_fiber_leaving(&host, f, false);
    emu_fiber_switch(&f->sp, host_sp);
    emu_fiber_entered(&host, f);
}
