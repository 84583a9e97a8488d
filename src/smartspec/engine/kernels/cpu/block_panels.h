/* Weights in blocks as kernels like to read them: of PANEL outputs side by side, instead of GGUF's one output by another.
 *
 * [outputs / PANEL, inputs / 32] of: PANEL scales, PANEL minima (only Q4_1's), 32 x PANEL quants, as many bytes as in GGUF.
 * Quants of 4 bits: [4, PANEL] words of 8 inputs each, the first in the lowest bits. Quants of 8 bits: [32, PANEL] bytes.
 * Unpacked in registers, they are a panel of fp32 weights (panels.h), and weights are exactly GGUF's.
 */
#pragma once

#include "dequantise.h"

/* Of a Weight, beside GGUF's: these are ours. Weights in fp32 by panels, and blocks by panels. */
#define TYPE_PANELS -1
#define TYPE_PANELS_Q4_0 -2
#define TYPE_PANELS_Q4_1 -3
#define TYPE_PANELS_Q8_0 -4
#define FOR_EACH_BLOCK_PANEL(USE) USE(TYPE_PANELS_Q4_0) USE(TYPE_PANELS_Q4_1) USE(TYPE_PANELS_Q8_0)

#define PANEL (2 * LANES)
#define WORD_INPUTS 8 /* quants of 4 bits in a word */
#define PREFETCHED 4096 /* bytes ahead of what is multiplied: left to itself, the processor waits for memory */
/* DIRECT_ROWS of x are multiplied at once with weights as these are unpacked in registers, two vectors of sums each. From
 * UNPACK_ROWS on, unpacking weights into memory once is the shorter way. */
#if LANES == 16
#define DIRECT_ROWS 12
#define UNPACK_ROWS 48
#define FOR_EACH_DIRECT_ROWS(USE, type)                                                                       \
    USE(type, 1) USE(type, 2) USE(type, 3) USE(type, 4) USE(type, 5) USE(type, 6) USE(type, 7) USE(type, 8) \
    USE(type, 9) USE(type, 10) USE(type, 11) USE(type, 12)
#else
#define DIRECT_ROWS 3
#define UNPACK_ROWS 10
#define FOR_EACH_DIRECT_ROWS(USE, type) USE(type, 1) USE(type, 2) USE(type, 3)
#endif

INLINE int64_t block_bytes(const int64_t type) {
    return type == TYPE_PANELS_Q4_0 ? 18 : type == TYPE_PANELS_Q4_1 ? 20 : 34;
}

/* Scales and offsets of a panel's outputs in one group of inputs, and where its quants lie. */
typedef struct {
    lanes scale[2], offset[2];
    const uint8_t *quants;
} PanelGroup;

INLINE void read_panel_group(const int64_t type, const uint8_t *from, PanelGroup *group) {
    for (int v = 0; v < 2; v++) {
        group->scale[v] = widen_halves(from + v * 2 * LANES);
        if (type == TYPE_PANELS_Q4_0) group->offset[v] = -8.0f * group->scale[v];
        if (type == TYPE_PANELS_Q4_1) group->offset[v] = widen_halves(from + 2 * PANEL + v * 2 * LANES);
    }
    group->quants = from + (type == TYPE_PANELS_Q4_1 ? 4 : 2) * PANEL;
}

/* The lowest 4 bits of each word as a float. */
INLINE lanes low_halves(ints word) {
#if LANES == 16
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (lanes)_mm512_permutexvar_ps((__m512i)word, numbers); /* reads no other bits, and spares a conversion */
#else
    return as_floats(word & 15);
#endif
}

/* Weights of input `input` of the group, for half the panel's outputs. All but `group` are constants where inlined. */
INLINE lanes panel_weights(const int64_t type, const PanelGroup *group, const int input, const int half) {
    if (type == TYPE_PANELS_Q8_0)
        return group->scale[half] * as_floats(widen_signed(group->quants + input * PANEL + half * LANES));
    const ints word = *(const ints *)(group->quants + (input / WORD_INPUTS * PANEL + half * LANES) * 4);
    return group->scale[half] * low_halves((ints)((unsigned_ints)word >> (input % WORD_INPUTS * 4))) + group->offset[half];
}

/* to [num_inputs, PANEL] = weights of a panel in fp32, from a group on. */
INLINE void unpack_block_panel(const int64_t type, const uint8_t *from, int64_t num_inputs, float *to) {
    for (int64_t g = 0; g < num_inputs / GROUP; g++, from += block_bytes(type) * PANEL, to += GROUP * PANEL) {
        PanelGroup group;
        read_panel_group(type, from, &group);
#pragma GCC unroll 32
        for (int input = 0; input < GROUP; input++)
            for (int v = 0; v < 2; v++) *(lanes *)(to + input * PANEL + v * LANES) = panel_weights(type, &group, input, v);
    }
}

/* sums [num_rows, PANEL] = x [num_rows, num_inputs] times a panel; type and num_rows are constants where inlined. */
INLINE void multiply_block_panel(const int64_t type, const int num_rows, const float *x, int64_t x_stride, const uint8_t *w,
                                 int64_t num_inputs, float *sums) {
    lanes low[DIRECT_ROWS] = {0}, high[DIRECT_ROWS] = {0};
    const float *every_third[(DIRECT_ROWS + 2) / 3]; /* row: an instruction adds no more than two strides by itself */
#pragma GCC unroll 4
    for (int i = 0; i < (DIRECT_ROWS + 2) / 3; i++) every_third[i] = x + 3 * i * x_stride;
    for (int64_t g = 0; g < num_inputs / GROUP; g++, w += block_bytes(type) * PANEL) {
        PanelGroup group;
        read_panel_group(type, w, &group);
        for (int64_t i = 0; i < block_bytes(type) * PANEL; i += 64) __builtin_prefetch(w + PREFETCHED + i);
#pragma GCC unroll 32
        for (int input = 0; input < GROUP; input++) {
            asm("" : "+r"(x_stride)); /* or gcc keeps every row's offset of every input in memory */
            const lanes w_low = panel_weights(type, &group, input, 0), w_high = panel_weights(type, &group, input, 1);
#pragma GCC unroll 12
            for (int r = 0; r < num_rows; r++) {
                const lanes number = every_third[r / 3][r % 3 * x_stride + input] - (lanes){0};
                low[r] = multiply_add(number, w_low, low[r]);
                high[r] = multiply_add(number, w_high, high[r]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < (DIRECT_ROWS + 2) / 3; i++) every_third[i] += GROUP;
    }
#pragma GCC unroll 12
    for (int r = 0; r < num_rows; r++) {
        *(lanes *)(sums + r * PANEL) = low[r];
        *(lanes *)(sums + r * PANEL + LANES) = high[r];
    }
}
