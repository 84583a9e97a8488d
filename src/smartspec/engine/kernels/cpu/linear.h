/* x @ weight.T + bias with the weight left as it lies, fp32 inputs and sums: what the dequantised weight gives, up to the
 * order of summation.
 *
 * Weights in panels are multiplied by panels (panels.h). Of blocks as GGUF stores them, with few rows every 32 weights are
 * multiplied as soon as they are unpacked, in registers; with more they are unpacked into panels.
 */
#pragma once

#include "panels.h"

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

/* y [num_rows, y_stride], its columns first * PANEL .. last * PANEL or the last output. One thread's work. */
static void linear_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride, int64_t first,
                         int64_t last) {
    if (num_rows > FEW_ROWS || weight->type <= TYPE_F32 || weight->inputs % GROUP) {
        panels_slice(weight, x, num_rows, y, y_stride, first, last);
        return;
    }
    const int64_t end = last * PANEL < weight->outputs ? last * PANEL : weight->outputs;
    for (int64_t output = first * PANEL; output < end; output++) {
        for (int64_t row = 0; row < num_rows; row++) y[row * y_stride + output] = weight->bias ? weight->bias[output] : 0.0f;
        for (int64_t row = 0; row < num_rows; row += FEW_TILE)
            multiply_few_of(weight, output, x + row * weight->inputs, num_rows - row, y + row * y_stride + output, y_stride);
    }
}

/* Panels [*first, *last) of one of num_threads equal shares. */
static inline void share_of_panels(const Weight *weight, int64_t thread, int64_t num_threads, int64_t *first, int64_t *last) {
    const int64_t panels = (weight->outputs + PANEL - 1) / PANEL;
    *first = panels * thread / num_threads;
    *last = panels * (thread + 1) / num_threads;
}
