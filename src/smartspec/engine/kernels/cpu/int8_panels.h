/* Inputs rounded to 8 bits (rounded_inputs.h) times weights in blocks by panels (block_panels.h).
 *
 * Products and their sums over a block are whole numbers and exact, whichever instructions make them. Each block's sum is
 * scaled in fp32 and added in the order of the inputs, rounded once: a row has the same bits in every batch and on every
 * processor.
 */
#pragma once

#include "block_panels.h"
#include "rounded_inputs.h"

#define WORDS (GROUP / 4) /* of a block: 4 quants of an output in 32 bits */
#define BOTH_HALVES_ROWS (LANES == 16 ? 2 : 1) /* of a panel at once: with more rows, one half after the other is faster */

/* How 8-bit inputs are multiplied: 2 by an instruction for it, 1 by several, 0 as no processor of ours does it fast. */
#if LANES == 16 && defined(__AVX512VNNI__)
#define MULTIPLIES_INT8 2
#define INT8_INSTRUCTIONS "AVX-512 VNNI"
#elif LANES == 8 && defined(__AVXVNNI__)
#define MULTIPLIES_INT8 2
#define INT8_INSTRUCTIONS "AVX-VNNI"
#elif LANES == 16 && defined(__AVX512BW__)
#define MULTIPLIES_INT8 1
#define INT8_INSTRUCTIONS "AVX-512 BW"
#elif LANES == 8
#define MULTIPLIES_INT8 1
#define INT8_INSTRUCTIONS "AVX2"
#else
#define MULTIPLIES_INT8 0
#define INT8_INSTRUCTIONS ""
#endif

/* Word k of a group for half the panel's outputs: 4 quants in bytes, not negative but of Q8_0 where no instruction wants it.
 * Everything but `group` is a constant where inlined. */
INLINE ints panel_word(const int64_t type, const PanelGroup *group, const int k, const int half) {
    if (type == TYPE_PANELS_Q8_0) {
        const int32_t signs = MULTIPLIES_INT8 == 2 ? (int32_t)0x80808080 : 0;
        return *(const ints *)(group->quants + (k * PANEL + half * LANES) * 4) ^ signs;
    }
    const ints both = *(const ints *)(group->quants + (k / 2 * PANEL + half * LANES) * 4);
    const ints low = both >> (k % 2 * 4) & 0x0f0f0f0f;
    const int bits = high_bits(type), place = bits * k % 8;
    if (!bits) return low;
    const ints high = *(const ints *)(group->high + (bits * k / 8 * PANEL + half * LANES) * 4);
    const ints above = place < 4 ? high << (4 - place) : high >> (place - 4);
    return low | (above & (bits == 1 ? 0x10101010 : 0x30303030));
}

/* What is taken from each quant of panel_word to make it the weight over its scale. */
INLINE int32_t quant_offset(const int64_t type) {
    if (type == TYPE_PANELS_Q8_0) return MULTIPLIES_INT8 == 2 ? 128 : 0;
    return has_minimum(type) ? 0 : 8 << high_bits(type);
}

/* What quant_offset takes from the products of a row's block, or of one of its halves, where type has two scales. */
INLINE ints offset_product(const int64_t type, const RoundedBlock *x, const int part) {
    if (!quant_offset(type)) return (ints){0};
    return ((ints){0} + x->less_sum[type == TYPE_PANELS_Q6_K ? 1 + part : 0]) * quant_offset(type);
}

INLINE ints four_quants(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return (ints){0} + word;
}

#if MULTIPLIES_INT8 == 1
typedef int16_t word_pairs __attribute__((vector_size(4 * LANES)));

/* Of bytes side by side the sum of two products, w not negative but of Q8_0. There the sign of w goes to x, whose bytes have
 * one with either sign: 2 * 128 * 127 is below 2^15. */
INLINE word_pairs multiply_bytes(const int64_t type, ints w, ints x) {
#if LANES == 16
    const __m512i negated = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), _mm512_setzero_si512(), (__m512i)x);
    if (type == TYPE_PANELS_Q8_0) return (word_pairs)_mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)w), negated);
    return (word_pairs)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
#else
    const __m256i negated = _mm256_sign_epi8((__m256i)x, (__m256i)w);
    if (type == TYPE_PANELS_Q8_0) return (word_pairs)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), negated);
    return (word_pairs)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#endif
}

INLINE ints add_pairs(word_pairs v) {
    const word_pairs ones = (word_pairs){0} + 1;
#if LANES == 16
    return (ints)_mm512_madd_epi16((__m512i)v, (__m512i)ones);
#else
    return (ints)_mm256_madd_epi16((__m256i)v, (__m256i)ones);
#endif
}
#endif

/* So many sums of two products fit in 16 bits: 2 * 127 * 15 * 8, * 31 * 4 and * 63 * 2 are below 2^15. */
INLINE int words_in_16_bits(const int64_t type) { return type == TYPE_PANELS_Q8_0 ? 1 : 8 >> high_bits(type); }

/* sum plus the products of count words of weights with those of x, byte by byte. */
INLINE ints add_products(const int64_t type, const ints *w, const int8_t *x, const int count, ints sum) {
#if MULTIPLIES_INT8 == 2 && LANES == 16
#pragma GCC unroll 8
    for (int k = 0; k < count; k++)
        sum = (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[k], (__m512i)four_quants(x + 4 * k));
#elif MULTIPLIES_INT8 == 2
#pragma GCC unroll 8
    for (int k = 0; k < count; k++)
        sum = (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w[k], (__m256i)four_quants(x + 4 * k));
#elif MULTIPLIES_INT8 == 1
    const int in_words = words_in_16_bits(type);
#pragma GCC unroll 8
    for (int k = 0; k < count; k += in_words) {
        word_pairs pairs = multiply_bytes(type, w[k], four_quants(x + 4 * k));
#pragma GCC unroll 8
        for (int i = 1; i < in_words; i++) pairs += multiply_bytes(type, w[k + i], four_quants(x + 4 * (k + i)));
        sum += add_pairs(pairs);
    }
#else
    for (int k = 0; k < count; k++)
        for (int j = 0; j < 4; j++) {
            const ints byte = w[k] << (24 - 8 * j);
            sum += (byte >> 24 & (type == TYPE_PANELS_Q8_0 ? -1 : 255)) * x[4 * k + j];
        }
#endif
    return sum;
}

/* sum plus one row's block times one group of a panel, half its outputs. */
INLINE lanes add_block(const int64_t type, const PanelGroup *group, const int half, const ints *w, const RoundedBlock *x,
                       lanes sum) {
    const int parts = type == TYPE_PANELS_Q6_K ? 2 : 1, count = WORDS / parts;
    for (int part = 0; part < parts; part++) {
        const ints offset = offset_product(type, x, part);
        const ints products = add_products(type, w + part * count, x->quants + part * count * 4, count, offset);
        sum = fused_multiply_add(as_floats(products) * group->scale[half][part], (lanes){0} + x->scale, sum);
    }
    if (has_minimum(type)) sum = fused_multiply_add(group->offset[half][0], (lanes){0} + x->scaled_sum, sum);
    return sum;
}

/* sums [num_rows, PANEL], their columns of `halves` halves from first_half on, = a tile of rows times a panel. terms: of a
 * block. type, num_rows and halves are constants where inlined. */
INLINE void multiply_rounded(const int64_t type, const int num_rows, const int halves, int64_t first_half,
                             const RoundedBlock *x, int64_t terms, const uint8_t *panel, int64_t num_groups, float *sums) {
    lanes of_rows[2][ROUNDED_ROWS] = {0};
    const int64_t bytes = group_bytes(type) * PANEL;
    PanelGroup group = {0};
    for (int64_t g = 0; g < num_groups; g++, x += terms * num_rows) {
        const uint8_t *from = panel + group_place(type, g);
        read_panel_group(type, from, g, halves, first_half, &group);
#pragma GCC unroll 40
        for (int64_t line = 0; line < bytes; line += 64 * (3 - halves))
            __builtin_prefetch(from + PREFETCHED + first_half * 64 + line);
#pragma GCC unroll 2
        for (int v = 0; v < halves; v++) {
            ints w[WORDS];
#pragma GCC unroll 8
            for (int k = 0; k < WORDS; k++) w[k] = panel_word(type, &group, k, v);
            for (const RoundedBlock *term = x; term < x + terms * num_rows; term += num_rows)
#pragma GCC unroll 16
                for (int r = 0; r < num_rows; r++) of_rows[v][r] = add_block(type, &group, v, w, term + r, of_rows[v][r]);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < halves; v++)
#pragma GCC unroll 16
        for (int r = 0; r < num_rows; r++) *(lanes *)(sums + r * PANEL + (first_half + v) * LANES) = of_rows[v][r];
}

INLINE void rounded_tile_times_panel(const int64_t type, const int num_rows, const RoundedBlock *x, int64_t terms,
                                     const uint8_t *panel, int64_t num_groups, float *sums) {
    const int halves = num_rows <= BOTH_HALVES_ROWS ? 2 : 1;
    for (int64_t half = 0; half < 2; half += halves)
        multiply_rounded(type, num_rows, halves, half, x, terms, panel, num_groups, sums);
}

#define UP_TO_8_ROWS(USE, type) \
    USE(type, 1) USE(type, 2) USE(type, 3) USE(type, 4) USE(type, 5) USE(type, 6) USE(type, 7) USE(type, 8)
#if LANES == 16
#define FOR_EACH_ROUNDED_ROWS(USE, type)                                                                   \
    UP_TO_8_ROWS(USE, type) USE(type, 9) USE(type, 10) USE(type, 11) USE(type, 12) USE(type, 13) USE(type, 14) \
    USE(type, 15) USE(type, 16)
#else
#define FOR_EACH_ROUNDED_ROWS(USE, type) UP_TO_8_ROWS(USE, type)
#endif

#define FOR_EACH_UNPACKED_TYPE(USE)                                                                      \
    USE(TYPE_PANELS_Q4_0) USE(TYPE_PANELS_Q4_1) USE(TYPE_PANELS_Q5_0) USE(TYPE_PANELS_Q5_1) USE(TYPE_PANELS_Q4_K) \
    USE(TYPE_PANELS_Q5_K) USE(TYPE_PANELS_Q6_K)
#define FOR_EACH_ROUNDED_TYPE(USE) FOR_EACH_UNPACKED_TYPE(USE) USE(TYPE_PANELS_Q8_0)

/* A function for each type and number of rows: in one large function gcc keeps less in registers. */
#define MULTIPLY_FUNCTION(name, multiply, type, rows)                                                     \
    static __attribute__((noinline)) void name(const RoundedBlock *x, int64_t terms, const uint8_t *panel, \
                                               int64_t num_groups, float *sums) {                          \
        multiply(type, rows, x, terms, panel, num_groups, sums);                                          \
    }
#define ROUNDED_FUNCTION(type, rows) MULTIPLY_FUNCTION(rounded_##type##_##rows, rounded_tile_times_panel, type, rows)
#define ROUNDED_FUNCTIONS(type) FOR_EACH_ROUNDED_ROWS(ROUNDED_FUNCTION, type)
FOR_EACH_ROUNDED_TYPE(ROUNDED_FUNCTIONS)

#define ROUNDED_CASE(type, rows) case rows: rounded_##type##_##rows(x, weight->rounds, w, groups, sums); return;
#if !UNPACKS_INT8
/* Up to ROUNDED_ROWS rows, a tile of x, times a panel of a weight in blocks. */
static void rounded_rows_times_panel(const Weight *weight, int64_t panel, const RoundedBlock *x, int64_t num_rows,
                                     float *sums) {
    const uint8_t *w = weight->blocks + panel * weight->row_bytes;
    const int64_t groups = weight->inputs / GROUP;
    switch (weight->type) {
#define ROUNDED_TYPE_CASE(type) \
    case type:                  \
        switch (num_rows) { FOR_EACH_ROUNDED_ROWS(ROUNDED_CASE, type) }
        FOR_EACH_ROUNDED_TYPE(ROUNDED_TYPE_CASE)
    }
}
#endif
