/* x @ weight.T + bias with the weight left in its blocks, fp32 inputs and sums: what the dequantised weight gives, up
 * to the order of summation.
 *
 * With few rows every 32 weights are multiplied as soon as they are unpacked, in registers. With more, a panel of some
 * outputs is unpacked into a scratch that stays in the first cache, and multiplied with all rows. Everything here is
 * one thread's work; whoever calls shares the outputs out among threads (share_of_outputs).
 */
#pragma once

#include "dequantise.h"

#if LANES == 16
#define TILE_ROWS 6
#else
#define TILE_ROWS 3 /* with TILE_OUTPUTS 4: 12 sums, 3 inputs and a weight fill the 16 registers of AVX2 */
#endif
#define TILE_OUTPUTS 4
#define PANEL_OUTPUTS 8
#define CHUNK 512          /* inputs that are unpacked at once, a multiple of every block; */
#define LARGEST_CHUNK 640  /* so many are one chunk: a panel and a tile's rows of x fit 32 KiB */
#define STRIDE (LARGEST_CHUNK + 32) /* no power of two: rows must not fight for the same cache lines */
#define FEW_ROWS 16 /* up to here unpacking once for FEW_TILE rows is the shorter way */
#define FEW_TILE 4

/* y[r * y_stride] += x [num_rows, inputs] @ the weights of a row; type and num_rows are constants where inlined. */
INLINE void multiply_few(const int64_t type, const uint8_t *row, const float *x, int64_t inputs, float *y,
                         int64_t y_stride, const int num_rows) {
    const int num_sums = num_rows > 2 ? 2 : GROUP_VECTORS; /* several sums a row: additions need not wait */
    lanes sums[FEW_TILE][GROUP_VECTORS] = {0}, weights[GROUP_VECTORS];
    for (int64_t g = 0; g < inputs / GROUP; g++) {
        unpack_group(type, row, g, weights);
        for (int r = 0; r < num_rows; r++)
            for (int v = 0; v < GROUP_VECTORS; v++)
                sums[r][v % num_sums] += weights[v] * *(const lanes *)(x + r * inputs + g * GROUP + v * LANES);
    }
    for (int r = 0; r < num_rows; r++) {
        for (int v = 1; v < num_sums; v++) sums[r][0] += sums[r][v];
        y[r * y_stride] += sum_of(sums[r][0]);
    }
}

/* The same of any type, for the first FEW_TILE rows of x or as many as there are. */
static void multiply_few_of(const Weight *weight, int64_t output, const float *x, int64_t num_rows, float *y,
                     int64_t y_stride) {
    const uint8_t *row = weight->blocks + output * weight->row_bytes;
#define FEW_CASE(type)                                                                    \
    case type:                                                                            \
        switch (num_rows) {                                                               \
        case 1: return multiply_few(type, row, x, weight->inputs, y, y_stride, 1);        \
        case 2: return multiply_few(type, row, x, weight->inputs, y, y_stride, 2);        \
        case 3: return multiply_few(type, row, x, weight->inputs, y, y_stride, 3);        \
        default: return multiply_few(type, row, x, weight->inputs, y, y_stride, FEW_TILE); \
        }
    switch (weight->type) { FOR_EACH_TYPE(FEW_CASE) }
}

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

/* y [num_rows, num_outputs] += x [num_rows, inputs] @ the weights of outputs `output` and those behind it. */
static void multiply_panel(const Weight *weight, int64_t output, int num_outputs, const float *x, int64_t num_rows,
                           float *y, int64_t y_stride) {
    float scratch[PANEL_OUTPUTS * STRIDE] __attribute__((aligned(64)));
    const int64_t inputs = weight->inputs, chunk = inputs > LARGEST_CHUNK ? CHUNK : inputs;
    for (int64_t k = 0; k < inputs; k += chunk) {
        const int64_t n = inputs - k < chunk ? inputs - k : chunk;
        for (int o = 0; o < num_outputs; o++) dequantise_row(weight, output + o, k, n, scratch + o * STRIDE);
        for (int64_t row = 0; row < num_rows; row += TILE_ROWS)
            for (int o = 0; o < num_outputs; o += TILE_OUTPUTS)
                multiply_rows(scratch + o * STRIDE, STRIDE, x + row * inputs + k, inputs, n, y + row * y_stride + o,
                              y_stride, num_outputs - o < TILE_OUTPUTS ? num_outputs - o : TILE_OUTPUTS,
                              num_rows - row < TILE_ROWS ? (int)(num_rows - row) : TILE_ROWS);
    }
}

/* y[row * y_stride + output] for outputs first <= output < last and all rows of x [num_rows, weight->inputs]. */
static void linear_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride,
                         int64_t first, int64_t last) {
    const int is_few = num_rows <= FEW_ROWS && weight->inputs % GROUP == 0 && weight->type != TYPE_F32;
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t output = first; output < last; output++)
            y[row * y_stride + output] = weight->bias ? weight->bias[output] : 0.0f;
    for (int64_t output = first; output < last; output += is_few ? 1 : PANEL_OUTPUTS) {
        const int num_outputs = last - output < PANEL_OUTPUTS ? (int)(last - output) : PANEL_OUTPUTS;
        if (is_few)
            for (int64_t row = 0; row < num_rows; row += FEW_TILE)
                multiply_few_of(weight, output, x + row * weight->inputs, num_rows - row, y + row * y_stride + output,
                                y_stride);
        else
            multiply_panel(weight, output, num_outputs, x, num_rows, y + output, y_stride);
    }
}

/* Outputs [*first, *last) of one of num_threads equal shares, whole panels. */
static inline void share_of_outputs(const Weight *weight, int64_t thread, int64_t num_threads, int64_t *first,
                                    int64_t *last) {
    const int64_t panels = (weight->outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    *first = panels * thread / num_threads * PANEL_OUTPUTS;
    *last = panels * (thread + 1) / num_threads * PANEL_OUTPUTS;
    if (*last > weight->outputs) *last = weight->outputs;
}
