/* x @ weight.T + bias with the weight left in its blocks, fp32 inputs and sums: what the dequantised weight gives, up
 * to the order of summation.
 *
 * A tile of a few outputs is dequantised into a scratch that stays in the first cache and multiplied with all rows of
 * x. Everything here is one thread's work; whoever calls shares the outputs out among threads (share_of_outputs).
 */
#pragma once

#include "dequantise.h"

#if LANES == 16
#define TILE_ROWS 6
#else
#define TILE_ROWS 3 /* with TILE_OUTPUTS 4: 12 sums, 3 inputs and a weight fill the 16 registers of AVX2 */
#endif
#define TILE_OUTPUTS 4
#define CHUNK 1024 /* inputs that are dequantised at once: a multiple of every block */
#define STRIDE (CHUNK + 32) /* not a power of two: rows must not fight for the same cache lines */

/* y [num_rows, num_outputs] += x [num_rows, n] @ w [num_outputs, n].T; the two counts are constants where inlined. */
INLINE void multiply_tile(const float *w, int64_t w_stride, const float *x,
                                                                int64_t x_stride, int64_t n, float *y, int64_t y_stride,
                                                                const int num_outputs, const int num_rows) {
    lanes sums[TILE_ROWS][TILE_OUTPUTS] = {0};
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int o = 0; o < num_outputs; o++) {
            const lanes weights = *(const lanes *)(w + o * w_stride + k);
            for (int r = 0; r < num_rows; r++) sums[r][o] += weights * *(const lanes *)(x + r * x_stride + k);
        }
    for (int r = 0; r < num_rows; r++)
        for (int o = 0; o < num_outputs; o++) {
            float sum = sum_of(sums[r][o]);
            for (int64_t i = k; i < n; i++) sum += w[o * w_stride + i] * x[r * x_stride + i];
            y[r * y_stride + o] += sum;
        }
}

#define ROWS_CASE(rows)                                                                                  \
    case rows:                                                                                           \
        if (num_outputs == TILE_OUTPUTS)                                                                 \
            multiply_tile(w, w_stride, x, x_stride, n, y, y_stride, TILE_OUTPUTS, rows);                 \
        else                                                                                             \
            for (int o = 0; o < num_outputs; o++)                                                        \
                multiply_tile(w + o * w_stride, w_stride, x, x_stride, n, y + o, y_stride, 1, rows);     \
        break;

static void multiply_rows(const float *w, int64_t w_stride, const float *x, int64_t x_stride, int64_t n, float *y,
                          int64_t y_stride, int num_outputs, int num_rows) {
    switch (num_rows) {
        ROWS_CASE(1)
        ROWS_CASE(2)
        ROWS_CASE(3)
#if TILE_ROWS > 3
        ROWS_CASE(4)
        ROWS_CASE(5)
        ROWS_CASE(6)
#endif
    }
}

/* y[row * y_stride + output] for outputs first <= output < last and all rows of x [num_rows, weight->inputs]. */
static void linear_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride,
                         int64_t first, int64_t last) {
    float scratch[TILE_OUTPUTS * STRIDE] __attribute__((aligned(64)));
    const int64_t inputs = weight->inputs;
    for (int64_t output = first; output < last; output += TILE_OUTPUTS) {
        const int num_outputs = last - output < TILE_OUTPUTS ? (int)(last - output) : TILE_OUTPUTS;
        for (int64_t row = 0; row < num_rows; row++)
            for (int o = 0; o < num_outputs; o++)
                y[row * y_stride + output + o] = weight->bias ? weight->bias[output + o] : 0.0f;
        for (int64_t k = 0; k < inputs; k += CHUNK) {
            const int64_t n = inputs - k < CHUNK ? inputs - k : CHUNK;
            for (int o = 0; o < num_outputs; o++) dequantise_row(weight, output + o, k, n, scratch + o * STRIDE);
            for (int64_t row = 0; row < num_rows; row += TILE_ROWS)
                multiply_rows(scratch, STRIDE, x + row * inputs + k, inputs, n, y + row * y_stride + output, y_stride,
                              num_outputs, num_rows - row < TILE_ROWS ? (int)(num_rows - row) : TILE_ROWS);
        }
    }
}

/* Outputs [*first, *last) of one of num_threads equal shares, whole tiles. */
static inline void share_of_outputs(const Weight *weight, int64_t thread, int64_t num_threads, int64_t *first,
                                    int64_t *last) {
    const int64_t tiles = (weight->outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    *first = tiles * thread / num_threads * TILE_OUTPUTS;
    *last = tiles * (thread + 1) / num_threads * TILE_OUTPUTS;
    if (*last > weight->outputs) *last = weight->outputs;
}
