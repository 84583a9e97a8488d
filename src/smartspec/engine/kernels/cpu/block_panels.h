/* Weights in blocks as kernels like to read them: of PANEL outputs side by side, instead of GGUF's one output by another.
 *
 * [outputs / PANEL, inputs / 32] of: PANEL scales, PANEL minima (of types that have them), bits of quants above the fourth,
 * lower 4 bits; before every 8 groups of a K type PANEL scales of scales (and of minima). Scales are halves, those that have a
 * scale bytes. Lower 4 bits: [4, PANEL] words of 8 inputs each, the first in the lowest bits. Masked, the lower halves of a
 * word's bytes are 4 quants side by side, of inputs 0, 2, 4 and 6, and the upper halves those of 1, 3, 5 and 7: the two words
 * that processors multiply with 8-bit inputs (int8_panels.h). Quants of 8 bits lie as such words: [8, PANEL]. Bits above the
 * fourth: [1, PANEL] words, or of Q6_K [2, PANEL]; those of word k's byte j begin in bit k (2k % 8) of byte j. Floats of
 * 16 bits have only themselves: IEEE 754's lie as [32, PANEL], bfloat16 as [16, PANEL] words of 2 inputs each, the first in
 * the lower half, as processors multiply them (bf16_panels.h). All as many bytes as in GGUF, but for 4 more in 256 weights of
 * Q4_K and Q5_K.
 * Unpacked in registers, they are a panel of fp32 weights (panels.h), and weights are exactly GGUF's.
 */
#pragma once

#include "dequantise.h"

/* Of a Weight, beside GGUF's: these are ours. Weights in fp32 by panels, and blocks by panels. row_bytes is then all bytes of
 * a panel. */
enum {
    TYPE_PANELS = -1,
    TYPE_PANELS_Q4_0 = -2,
    TYPE_PANELS_Q4_1 = -3,
    TYPE_PANELS_Q8_0 = -4,
    TYPE_PANELS_BF16 = -5,
    TYPE_PANELS_F16 = -6,
    TYPE_PANELS_Q5_0 = -7,
    TYPE_PANELS_Q5_1 = -8,
    TYPE_PANELS_Q4_K = -9,
    TYPE_PANELS_Q5_K = -10,
    TYPE_PANELS_Q6_K = -11,
};
#define FOR_EACH_BLOCK_PANEL(USE)                                                                        \
    USE(TYPE_PANELS_Q4_0) USE(TYPE_PANELS_Q4_1) USE(TYPE_PANELS_Q8_0) USE(TYPE_PANELS_BF16) USE(TYPE_PANELS_F16) \
    USE(TYPE_PANELS_Q5_0) USE(TYPE_PANELS_Q5_1) USE(TYPE_PANELS_Q4_K) USE(TYPE_PANELS_Q5_K) USE(TYPE_PANELS_Q6_K)

#define PANEL (2 * LANES)
#define PART_INPUTS 8 /* of a group at a time: as many as quants of 4 bits in a word */
#define PREFETCHED 8192 /* bytes ahead of what is multiplied: left to itself, the processor waits for memory */
/* DIRECT_ROWS of x are multiplied at once with weights as these are unpacked in registers, two vectors of sums each. From
 * UNPACK_ROWS on, unpacking weights into memory once is the shorter way. */
#if LANES == 16
#define DIRECT_ROWS 12
#define UNPACK_ROWS 48
#define UNPACK_ROWS_HIGH 25 /* of types whose quants lie in two places */
#define UNPACK_ROWS_PLAIN INT64_MAX /* of floats of 16 bits: widening them takes less time than reading them widened */
#define FOR_EACH_DIRECT_ROWS(USE, type)                                                                       \
    USE(type, 1) USE(type, 2) USE(type, 3) USE(type, 4) USE(type, 5) USE(type, 6) USE(type, 7) USE(type, 8) \
    USE(type, 9) USE(type, 10) USE(type, 11) USE(type, 12)
#else
#define DIRECT_ROWS 3
#define UNPACK_ROWS 10
#define UNPACK_ROWS_HIGH 10
#define UNPACK_ROWS_PLAIN 10
#define FOR_EACH_DIRECT_ROWS(USE, type) USE(type, 1) USE(type, 2) USE(type, 3)
#endif

INLINE int is_plain(const int64_t type) { return type == TYPE_PANELS_BF16 || type == TYPE_PANELS_F16; }
INLINE int is_k(const int64_t type) {
    return type == TYPE_PANELS_Q4_K || type == TYPE_PANELS_Q5_K || type == TYPE_PANELS_Q6_K;
}
INLINE int has_minimum(const int64_t type) {
    return type == TYPE_PANELS_Q4_1 || type == TYPE_PANELS_Q5_1 || type == TYPE_PANELS_Q4_K || type == TYPE_PANELS_Q5_K;
}

/* Bits of a quant above the fourth, where these lie apart. */
INLINE int high_bits(const int64_t type) {
    return type == TYPE_PANELS_Q6_K ? 2 : type == TYPE_PANELS_Q5_0 || type == TYPE_PANELS_Q5_1 || type == TYPE_PANELS_Q5_K;
}

/* Of one output: bytes of scales and minima in a group of inputs, of the whole group, and before 8 groups of a K type. */
INLINE int64_t scale_bytes(const int64_t type) {
    return is_plain(type) ? 0 : is_k(type) ? 2 : has_minimum(type) ? 4 : 2;
}
INLINE int64_t group_bytes(const int64_t type) {
    return is_plain(type) ? 64 : scale_bytes(type) + 4 * high_bits(type) + (type == TYPE_PANELS_Q8_0 ? 32 : 16);
}
INLINE int64_t head_bytes(const int64_t type) { return !is_k(type) ? 0 : has_minimum(type) ? 4 : 2; }

/* Where in a panel group g begins, after what stands before it. */
INLINE int64_t group_place(const int64_t type, int64_t g) {
    return (g * group_bytes(type) + (g / 8 + 1) * head_bytes(type)) * PANEL;
}

/* Scales and offsets of a panel's outputs in one group of inputs, for each half of the outputs (of Q6_K for each half of the
 * inputs, too), those of 8 groups, and where the quants lie. */
typedef struct {
    lanes scale[2][2], offset[2][2], head_scale[2], head_minimum[2];
    const uint8_t *high, *quants;
} PanelGroup;

/* halves, first_half: as in read_panel_group. */
INLINE void read_scales_of_k(const int64_t type, const uint8_t *from, int64_t g, const int halves, int64_t first_half,
                             PanelGroup *group) {
    const uint8_t *heads = from - head_bytes(type) * PANEL + first_half * 2 * LANES, *codes = from + first_half * LANES;
    if (g % 8 == 0)
        for (int v = 0; v < halves; v++) {
            group->head_scale[v] = widen_halves(heads + v * 2 * LANES);
            if (has_minimum(type)) group->head_minimum[v] = widen_halves(heads + 2 * PANEL + v * 2 * LANES);
        }
    for (int v = 0; v < halves; v++)
        if (has_minimum(type)) {
            group->scale[v][0] = group->head_scale[v] * as_floats(widen(codes + v * LANES));
            group->offset[v][0] = -group->head_minimum[v] * as_floats(widen(codes + PANEL + v * LANES));
        } else
            for (int part = 0; part < 2; part++) {
                const lanes factor = as_floats(widen_signed(codes + part * PANEL + v * LANES));
                group->scale[v][part] = group->head_scale[v] * factor;
                group->offset[v][part] = -32.0f * group->scale[v][part];
            }
}

/* So many halves of the outputs, a constant where inlined, from first_half on, which then are halves 0 and on of `group`.
 * Groups are read in their order: those of a K type share what stands before the first of 8. */
INLINE void read_panel_group(const int64_t type, const uint8_t *from, int64_t g, const int halves, int64_t first_half,
                             PanelGroup *group) {
    group->high = from + scale_bytes(type) * PANEL + first_half * 4 * LANES;
    group->quants = group->high + 4 * high_bits(type) * PANEL;
    if (is_plain(type)) return;
    if (is_k(type)) {
        read_scales_of_k(type, from, g, halves, first_half, group);
        return;
    }
    const uint8_t *scales = from + first_half * 2 * LANES;
    for (int v = 0; v < halves; v++) {
        group->scale[v][0] = widen_halves(scales + v * 2 * LANES);
        if (has_minimum(type)) group->offset[v][0] = widen_halves(scales + 2 * PANEL + v * 2 * LANES);
        else group->offset[v][0] = (high_bits(type) ? -16.0f : -8.0f) * group->scale[v][0];
    }
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

/* The same with the bits above it, which begin in bit 4 of `above`. */
INLINE lanes with_high_bits(const int bits, ints word, ints above) {
#if LANES == 16
    /* where the mask has ones, of word, else of above */
    const __m512i all = _mm512_ternarylogic_epi32((__m512i)above, (__m512i)word, _mm512_set1_epi32(15), 0xd8);
    if (bits == 1) {
        const __m512 low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512 high = _mm512_setr_ps(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
        return (lanes)_mm512_permutex2var_ps(low, all, high);
    }
    return as_floats((ints)all & 63);
#else
    return as_floats((word & 15) | (above & (bits == 1 ? 16 : 48)));
#endif
}

/* Bits above the fourth of input i of part `part`, from bit 4 on. */
INLINE ints bits_above(const int bits, const uint8_t *high, int part, const int i, const int half) {
    const ints word = *(const ints *)(high + (bits * part / 4 * PANEL + half * LANES) * 4);
    const ints all = (ints)((unsigned_ints)word >> (2 * bits * part % 8));
    const int place = i / 2 * 8 + i % 2 * bits;
    return place < 4 ? all << (4 - place) : (ints)((unsigned_ints)all >> (place - 4));
}

/* Weights of input i of a part of the group, for half the panel's outputs. type, i and half are constants where inlined. */
INLINE lanes panel_weights(const int64_t type, const PanelGroup *group, int part, const int i, const int half) {
    const uint8_t *quants = group->quants;
    const int input = part * PART_INPUTS + i;
    if (type == TYPE_PANELS_F16) return widen_halves(quants + (input * PANEL + half * LANES) * 2);
    if (type == TYPE_PANELS_BF16) {
        const ints pair = *(const ints *)(quants + ((part * PART_INPUTS / 2 + i / 2) * PANEL + half * LANES) * 4);
        if (i % 2) return (lanes)(pair & (int32_t)0xffff0000);
        return (lanes)(pair << 16);
    }
    if (type == TYPE_PANELS_Q8_0) {
        const ints word = *(const ints *)(quants + ((2 * part + i % 2) * PANEL + half * LANES) * 4);
        return group->scale[half][0] * as_floats(word << (24 - i / 2 * 8) >> 24);
    }
    const ints words = *(const ints *)(quants + (part * PANEL + half * LANES) * 4);
    const ints word = (ints)((unsigned_ints)words >> (i * 4));
    const int bits = high_bits(type), scale = type == TYPE_PANELS_Q6_K ? part / 2 : 0;
    const lanes number = bits ? with_high_bits(bits, word, bits_above(bits, group->high, part, i, half)) : low_halves(word);
    return group->scale[half][scale] * number + group->offset[half][scale];
}

/* to [num_inputs, PANEL] = weights of a panel in fp32, from input `first` on, a multiple of 256. */
INLINE void unpack_block_panel(const int64_t type, const uint8_t *panel, int64_t first, int64_t num_inputs, float *to) {
    PanelGroup group = {0};
    for (int64_t g = first / GROUP; g < (first + num_inputs) / GROUP; g++, to += GROUP * PANEL) {
        read_panel_group(type, panel + group_place(type, g), g, 2, 0, &group);
        for (int part = 0; part < GROUP / PART_INPUTS; part++)
#pragma GCC unroll 8
            for (int i = 0; i < PART_INPUTS; i++)
                for (int v = 0; v < 2; v++)
                    *(lanes *)(to + (part * PART_INPUTS + i) * PANEL + v * LANES) = panel_weights(type, &group, part, i, v);
    }
}

/* sums [num_rows, PANEL] = x [num_rows, num_inputs] times a panel; type and num_rows are constants where inlined. */
INLINE void multiply_block_panel(const int64_t type, const int num_rows, const float *x, int64_t x_stride, 
                                 const uint8_t *panel, int64_t num_inputs, float *sums) {
    lanes low[DIRECT_ROWS] = {0}, high[DIRECT_ROWS] = {0};
    const float *every_third[(DIRECT_ROWS + 2) / 3]; /* row: an instruction adds no more than two strides by itself */
#pragma GCC unroll 4
    for (int i = 0; i < (DIRECT_ROWS + 2) / 3; i++) every_third[i] = x + 3 * i * x_stride;
    const int64_t input_bytes = group_bytes(type) * PANEL / GROUP;
    PanelGroup group = {0};
    for (int64_t g = 0; g < num_inputs / GROUP; g++) {
        const uint8_t *w = panel + group_place(type, g);
        read_panel_group(type, w, g, 2, 0, &group);
        for (int part = 0; part < GROUP / PART_INPUTS; part++) {
#pragma GCC unroll 8
            for (int i = 0; i < PART_INPUTS; i++) {
                const int64_t line = (part * PART_INPUTS + i) * input_bytes;
                if (i * input_bytes % 64 < input_bytes) __builtin_prefetch(w + PREFETCHED + line); /* one at a time */
                asm("" : "+r"(x_stride)); /* or gcc keeps every row's offset of every input in memory */
                const lanes w_low = panel_weights(type, &group, part, i, 0), w_high = panel_weights(type, &group, part, i, 1);
#pragma GCC unroll 12
                for (int r = 0; r < num_rows; r++) {
                    const lanes number = every_third[r / 3][r % 3 * x_stride + i] - (lanes){0};
                    low[r] = multiply_add(number, w_low, low[r]);
                    high[r] = multiply_add(number, w_high, high[r]);
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < (DIRECT_ROWS + 2) / 3; i++) every_third[i] += PART_INPUTS;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < num_rows; r++) {
        *(lanes *)(sums + r * PANEL) = low[r];
        *(lanes *)(sums + r * PANEL + LANES) = high[r];
    }
}
