/* x @ weight.T + bias by panels of PANEL outputs, for few rows of x as for many.
 *
 * Weights in fp32 lie so: [outputs / PANEL, inputs, PANEL], the last panel filled up with zeros; so do blocks of some types
 * (block_panels.h). Blocks of others are unpacked a panel at a time, which pays with many rows. A tile of rows times a panel
 * keeps its sums in registers, reads weights as they lie and x one number at a time (Goto and van de Geijn 2008,
 * doi.org/10.1145/1356052.1356053). Each output is summed in the order of its inputs, however many rows there are: a row's
 * result does not depend on what else is in the batch, not even in the last bit.
 */
#pragma once

#include "block_panels.h"

#if LANES == 16
#define PANEL_ROWS 12 /* two vectors of sums for each row, and what they are made of, fill the registers */
#else
#define PANEL_ROWS 6
#endif
#define MOST_ROWS 256 /* of x at a time: they stay in the second cache while panels pass by */
#define PANEL_INPUTS 256 /* at a time, a multiple of every block: a panel stays in the first cache while rows pass by */
#define SIDE_BY_SIDE 4 /* panels that one row is multiplied with at once, or it would wait for its own sums */

/* sums [num_panels, num_rows, PANEL] += x [num_rows, num_inputs] times panels; the first two counts are constants where
 * inlined. */
INLINE void multiply_panels(const int num_rows, const int num_panels, const float *x, int64_t x_stride, const float *w,
                            int64_t w_stride, int64_t num_inputs, float *sums, int64_t sums_stride) {
    lanes low[PANEL_ROWS], high[PANEL_ROWS];
#pragma GCC unroll 12
    for (int i = 0; i < num_rows * num_panels; i++) {
        const float *from = sums + i / num_rows * sums_stride + i % num_rows * PANEL;
        low[i] = *(const lanes *)from;
        high[i] = *(const lanes *)(from + LANES);
    }
    for (int64_t k = 0; k < num_inputs; k++)
#pragma GCC unroll 4
        for (int p = 0; p < num_panels; p++) {
            const float *weights = w + p * w_stride + k * PANEL;
            const lanes w_low = *(const lanes *)weights, w_high = *(const lanes *)(weights + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < num_rows; r++) {
                low[p * num_rows + r] += x[r * x_stride + k] * w_low;
                high[p * num_rows + r] += x[r * x_stride + k] * w_high;
            }
        }
#pragma GCC unroll 12
    for (int i = 0; i < num_rows * num_panels; i++) {
        float *to = sums + i / num_rows * sums_stride + i % num_rows * PANEL;
        *(lanes *)to = low[i];
        *(lanes *)(to + LANES) = high[i];
    }
}

static void multiply_rows_and_panel(int64_t num_rows, const float *x, int64_t x_stride, const float *w, int64_t num_inputs,
                                    float *sums) {
    for (; num_rows >= PANEL_ROWS; num_rows -= PANEL_ROWS, x += PANEL_ROWS * x_stride, sums += PANEL_ROWS * PANEL)
        multiply_panels(PANEL_ROWS, 1, x, x_stride, w, 0, num_inputs, sums, 0);
#define PANEL_CASE(rows) \
    case rows: multiply_panels(rows, 1, x, x_stride, w, 0, num_inputs, sums, 0); break;
    switch (num_rows) {
        PANEL_CASE(1) PANEL_CASE(2) PANEL_CASE(3) PANEL_CASE(4) PANEL_CASE(5)
#if PANEL_ROWS > 6
        PANEL_CASE(6) PANEL_CASE(7) PANEL_CASE(8) PANEL_CASE(9) PANEL_CASE(10) PANEL_CASE(11)
#endif
    }
#undef PANEL_CASE
}

/* One panel's outputs of some rows: sums plus bias, as many as there are. */
static inline void store_panel(const Weight *weight, int64_t panel, int64_t num_rows, const float *sums, float *y,
                               int64_t y_stride) {
    const int64_t first = panel * PANEL, left = weight->outputs - first, count = left < PANEL ? left : PANEL;
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t i = 0; i < count; i++)
            y[r * y_stride + first + i] = sums[r * PANEL + i] + (weight->bias ? weight->bias[first + i] : 0.0f);
}

/* One row of x times panels first <= panel < last in fp32. */
static void panels_of_row(const Weight *weight, const float *x, float *y, int64_t first, int64_t last) {
    const int64_t stride = weight->inputs * PANEL;
    const float *w = (const float *)weight->blocks;
    for (int64_t panel = first; panel < last;) {
        float sums[SIDE_BY_SIDE * PANEL] ALIGNED = {0};
        const int64_t count = last - panel < SIDE_BY_SIDE ? 1 : SIDE_BY_SIDE;
        if (count > 1) multiply_panels(1, SIDE_BY_SIDE, x, 0, w + panel * stride, stride, weight->inputs, sums, PANEL);
        else multiply_panels(1, 1, x, 0, w + panel * stride, stride, weight->inputs, sums, PANEL);
        for (int64_t p = 0; p < count; p++, panel++) store_panel(weight, panel, 1, sums + p * PANEL, y, 0);
    }
}

/* Up to DIRECT_ROWS rows of x times a panel in blocks, which is unpacked in registers. */
#define DIRECT_CASE(type, rows) \
    case rows: multiply_block_panel(type, rows, x, weight->inputs, w, weight->inputs, sums); return;
static void rows_times_block_panel(const Weight *weight, int64_t panel, const float *x, int64_t num_rows, float *sums) {
    const uint8_t *w = weight->blocks + panel * (weight->inputs / GROUP) * weight->row_bytes;
    switch (weight->type) {
#define BLOCK_PANEL_CASE(type) \
    case type:                 \
        switch (num_rows) { FOR_EACH_DIRECT_ROWS(DIRECT_CASE, type) }
        FOR_EACH_BLOCK_PANEL(BLOCK_PANEL_CASE)
    }
}

/* As panels_slice, of blocks: rows are tiles of one height, or nearly so. */
static void block_panels_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride,
                               int64_t first, int64_t last) {
    const int64_t tiles = (num_rows + DIRECT_ROWS - 1) / DIRECT_ROWS;
    float sums[DIRECT_ROWS * PANEL] ALIGNED;
    for (int64_t panel = first; panel < last; panel++)
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = num_rows * tile / tiles, rows = num_rows * (tile + 1) / tiles - row;
            rows_times_block_panel(weight, panel, x + row * weight->inputs, rows, sums);
            store_panel(weight, panel, rows, sums, y + row * y_stride, y_stride);
        }
}

/* Outputs panel * PANEL and on of a weight in blocks, inputs first .. first + num_inputs, in fp32 as a panel. */
static void unpack_panel(const Weight *weight, int64_t panel, int64_t first, int64_t num_inputs, float *to) {
    const uint8_t *from = weight->blocks + (panel * weight->inputs + first) / GROUP * weight->row_bytes;
    switch (weight->type) {
#define UNPACK_CASE(type) case type: unpack_block_panel(type, from, num_inputs, to); return;
        FOR_EACH_BLOCK_PANEL(UNPACK_CASE)
    }
    float rows[PANEL][PANEL_INPUTS + 16]; /* not a power of two: rows must not fight for the same cache lines */
    for (int64_t i = 0; i < PANEL; i++)
        if (panel * PANEL + i < weight->outputs)
            dequantise_row(weight, panel * PANEL + i, first, num_inputs, rows[i]);
        else
            memset(rows[i], 0, num_inputs * sizeof(float));
    for (int64_t k = 0; k < num_inputs; k++)
        for (int64_t i = 0; i < PANEL; i++) to[k * PANEL + i] = rows[i][k];
}

/* y [num_rows, y_stride], its columns first * PANEL .. last * PANEL or the last output. One thread's work. */
static void panels_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride, int64_t first,
                         int64_t last) {
    const int64_t inputs = weight->inputs;
    const int in_fp32 = weight->type == TYPE_PANELS;
    if (num_rows == 1 && in_fp32) {
        panels_of_row(weight, x, y, first, last);
        return;
    }
    if (num_rows < UNPACK_ROWS && weight->type < TYPE_PANELS) {
        block_panels_slice(weight, x, num_rows, y, y_stride, first, last);
        return;
    }
    for (int64_t row = 0; row < num_rows; row += MOST_ROWS)
        for (int64_t panel = first; panel < last; panel++) {
            const int64_t rows = num_rows - row < MOST_ROWS ? num_rows - row : MOST_ROWS;
            float sums[MOST_ROWS * PANEL] ALIGNED, unpacked[PANEL_INPUTS * PANEL] ALIGNED;
            memset(sums, 0, rows * PANEL * sizeof(float));
            for (int64_t k = 0; k < inputs; k += PANEL_INPUTS) {
                const int64_t num_inputs = inputs - k < PANEL_INPUTS ? inputs - k : PANEL_INPUTS;
                const float *w = in_fp32 ? (const float *)weight->blocks + (panel * inputs + k) * PANEL : unpacked;
                if (!in_fp32) unpack_panel(weight, panel, k, num_inputs, unpacked);
                multiply_rows_and_panel(rows, x + row * inputs + k, inputs, w, num_inputs, sums);
            }
            store_panel(weight, panel, rows, sums, y + row * y_stride, y_stride);
        }
}
