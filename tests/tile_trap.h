/* tile_trap.h: runs compiled tile instructions on a CPU that has none: each raises SIGILL, is
 * decoded and done by the unit of tile_emulator.h, and the program goes on behind it. Encodings:
 * Intel SDM volume 2, the instructions' pages and section 2.3 (VEX, ModR/M, SIB). */
#ifndef OCT_TEST_TILE_TRAP_H
#define OCT_TEST_TILE_TRAP_H

#include <ucontext.h>

#include "tile_emulator.h"

typedef struct trap_operand {
    uint64_t base, index; /* the address without the index register, and that register scaled */
    const uint8_t *end;   /* of the instruction */
} trap_operand;

static uint64_t trap_register(const ucontext_t *u, int n)
{
    static const int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)u->uc_mcontext.gregs[order[n]];
}

/* p: the ModR/M byte, of an operand in memory; x and b: the bits that VEX adds to its registers. */
static trap_operand trap_memory(const ucontext_t *u, const uint8_t *p, int x, int b)
{
    trap_operand o = {0};
    int mod = p[0] >> 6, rm = p[0] & 7, base = rm;
    p++;
    if (rm == 4) {
        int index = (p[0] >> 3 & 7) + 8 * x;
        base = p[0] & 7;
        o.index = index == 4 ? 0 : trap_register(u, index) << (p[0] >> 6);
        p++;
    }
    bool no_base = mod == 0 && base == 5;
    int32_t wide = 0;
    if (mod == 2 || no_base) {
        memcpy(&wide, p, 4);
        p += 4;
    } else if (mod == 1) {
        wide = (int8_t)*p++;
    }
    o.end = p;
    if (!no_base)
        o.base = trap_register(u, base + 8 * b);
    else if (rm == 5)
        o.base = (uint64_t)(uintptr_t)p; /* relative to the next instruction */
    o.base += (uint64_t)(int64_t)wide;
    return o;
}

/* Does the instruction at p; returns where the next one begins, NULL if it is not one of ours. */
static const uint8_t *trap_execute(const ucontext_t *u, const uint8_t *p)
{
    enum { PREFIX_NONE, PREFIX_66, PREFIX_F3, PREFIX_F2 };
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || p[2] & 0x84) /* VEX, map 0F38, W = L = 0 */
        return NULL;
    int x = !(p[1] & 0x40), b = !(p[1] & 0x20), prefix = p[2] & 3, v = ~p[2] >> 3 & 15;
    int op = p[3], mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7;
    trap_operand m = {.end = p + 5};
    if (mod != 3)
        m = trap_memory(u, p + 4, x, b);
    void *at = (void *)(uintptr_t)m.base;
    if (op == 0x5e && prefix == PREFIX_F3 && mod == 3)
        tile_dot(reg, rm, v);
    else if (op == 0x5e && prefix == PREFIX_66 && mod == 3)
        tile_dot_us(reg, rm, v);
    else if (op == 0x4b && prefix == PREFIX_F2 && mod != 3 && rm == 4)
        tile_load(reg, at, (int64_t)m.index);
    else if (op == 0x4b && prefix == PREFIX_F3 && mod != 3 && rm == 4)
        tile_store(reg, at, (int64_t)m.index);
    else if (op == 0x49 && prefix == PREFIX_F2 && mod == 3 && rm == 0)
        tile_zero(reg);
    else if (op == 0x49 && prefix == PREFIX_NONE && mod == 3 && reg == 0 && rm == 0)
        tile_release();
    else if (op == 0x49 && prefix == PREFIX_NONE && mod != 3 && reg == 0)
        tile_configure((const tile_config *)(uintptr_t)(m.base + m.index));
    else
        return NULL;
    return m.end;
}

static void (*trap_otherwise)(int sig);

static void trap_on_sigill(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    (void)info;
    const uint8_t *next =
        trap_execute(u, (const uint8_t *)(uintptr_t)u->uc_mcontext.gregs[REG_RIP]);
    if (!next)
        trap_otherwise(sig);
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)next;
}

#endif
