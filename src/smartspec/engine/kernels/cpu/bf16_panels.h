/* x, rounded to bfloat16, times panels of bfloat16 weights with fp32 sums, by instructions that multiply pairs of inputs.
 *
 * Twice the products of an fp32 instruction, for the price of rounding x; weights need no unpacking. As with every panel, a
 * row has the same bits in every batch. Only for processors with AVX512_BF16; others never see a weight of bfloat16 that rounds.
 */
#pragma once

#include "block_panels.h"

#define ROUNDED_NUMBERS (1 << 17) /* of x at a time: they stay in the second cache while panels pass by */

#ifdef __AVX512BF16__
#define MULTIPLIES_BF16 1

static void round_to_bf16(const float *x, int64_t count, uint16_t *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm256_storeu_si256((__m256i *)(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    const __mmask16 rest = (1u << (count - i)) - 1;
    if (rest) _mm256_mask_storeu_epi16(to + i, rest, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, x + i)));
}

/* sums [num_rows, PANEL] = x [num_rows, num_inputs] times a panel; num_rows is a constant where inlined. */
INLINE void multiply_pairs(const int num_rows, const uint16_t *x, int64_t x_stride, const uint8_t *w, int64_t num_inputs,
                           float *sums) {
    __m512 low[DIRECT_ROWS], high[DIRECT_ROWS];
    for (int r = 0; r < num_rows; r++) low[r] = high[r] = _mm512_setzero_ps();
    const uint16_t *every_third[(DIRECT_ROWS + 2) / 3]; /* as in multiply_block_panel */
#pragma GCC unroll 4
    for (int i = 0; i < (DIRECT_ROWS + 2) / 3; i++) every_third[i] = x + 3 * i * x_stride;
    for (int64_t k = 0; k < num_inputs; k += 2, w += 4 * PANEL) {
        const __m512bh w_low = (__m512bh)_mm512_loadu_si512(w), w_high = (__m512bh)_mm512_loadu_si512(w + 4 * LANES);
        __builtin_prefetch(w + PREFETCHED);
        __builtin_prefetch(w + PREFETCHED + 64);
#pragma GCC unroll 12
        for (int r = 0; r < num_rows; r++) {
            int32_t pair;
            memcpy(&pair, every_third[r / 3] + r % 3 * x_stride + k, 4);
            const __m512bh number = (__m512bh)_mm512_set1_epi32(pair);
            low[r] = _mm512_dpbf16_ps(low[r], number, w_low);
            high[r] = _mm512_dpbf16_ps(high[r], number, w_high);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < num_rows; r++) {
        _mm512_store_ps(sums + r * PANEL, low[r]);
        _mm512_store_ps(sums + r * PANEL + LANES, high[r]);
    }
}

/* Up to DIRECT_ROWS rows. */
static void bf16_rows_times_panel(int64_t num_rows, const uint16_t *x, const uint8_t *w, int64_t num_inputs, float *sums) {
#define PAIRS_CASE(_, rows) case rows: multiply_pairs(rows, x, num_inputs, w, num_inputs, sums); return;
    switch (num_rows) { FOR_EACH_DIRECT_ROWS(PAIRS_CASE, _) }
#undef PAIRS_CASE
}

#else
#define MULTIPLIES_BF16 0
static void round_to_bf16(const float *x, int64_t count, uint16_t *to) {}
static void bf16_rows_times_panel(int64_t num_rows, const uint16_t *x, const uint8_t *w, int64_t num_inputs, float *sums) {}
#endif
