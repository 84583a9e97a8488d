/* x @ weight.T + bias by panels of PANEL outputs, for few rows of x as for many.
 *
 * Weights lie so: [outputs / PANEL, inputs, PANEL], the last panel filled up with zeros. A tile of rows times a panel
 * keeps its sums in registers, reads weights as they lie and x one number at a time (Goto and van de Geijn 2008,
 * doi.org/10.1145/1356052.1356053). Each output is summed in the order of its inputs, however many rows there are: a row's
 * result does not depend on what else is in the batch, not even in the last bit.
 */
#pragma once

#include "bf16_panels.h"

#if LANES == 16
#define PANEL_ROWS 12 /* two vectors of sums for each row, and what they are made of, fill the registers */
#else
#define PANEL_ROWS 6
#endif
#define MOST_ROWS 256 /* of x at a time: they stay in the second cache while panels pass by */
#define PANEL_INPUTS 256 /* at a time, a multiple of every block: a panel stays in the first cache while rows pass by */
#define SIDE_BY_SIDE 4 /* panels that one row is multiplied with at once, or it would wait for its own sums */

/* Of memory that is multiplied next: so many bytes from `from` on with every input, into the second cache. Left to itself,
 * the processor waits for memory while it multiplies several rows. */
typedef struct {
    const char *from;
    int64_t bytes;
} Ahead;

/* sums [num_panels, num_rows, PANEL] += x [num_rows, num_inputs] times panels; the first two counts are constants where
 * inlined, and so is ahead where it is empty. */
INLINE void multiply_panels(const int num_rows, const int num_panels, const float *x, int64_t x_stride, const float *w,
                            int64_t w_stride, int64_t num_inputs, Ahead ahead, float *sums, int64_t sums_stride) {
    lanes low[PANEL_ROWS], high[PANEL_ROWS];
#pragma GCC unroll 12
    for (int i = 0; i < num_rows * num_panels; i++) {
        const float *from = sums + i / num_rows * sums_stride + i % num_rows * PANEL;
        low[i] = *(const lanes *)from;
        high[i] = *(const lanes *)(from + LANES);
    }
    for (int64_t k = 0; k < num_inputs; k++) {
        if (ahead.from) {
            __builtin_prefetch(ahead.from + k * ahead.bytes, 0, 2);
            __builtin_prefetch(ahead.from + k * ahead.bytes + 64, 0, 2);
        }
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
    }
#pragma GCC unroll 12
    for (int i = 0; i < num_rows * num_panels; i++) {
        float *to = sums + i / num_rows * sums_stride + i % num_rows * PANEL;
        *(lanes *)to = low[i];
        *(lanes *)(to + LANES) = high[i];
    }
}

/* The same of any number of rows and a panel, in tiles of one height, or nearly so. next: as many numbers that will be
 * multiplied soon; NULL where they are in a cache. */
static void multiply_rows_and_panel(int64_t num_rows, const float *x, int64_t x_stride, const float *w, int64_t num_inputs,
                                    const float *next, float *sums) {
    const int64_t tiles = (num_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t row = num_rows * tile / tiles, rows = num_rows * (tile + 1) / tiles - row;
        const int64_t bytes = PANEL * sizeof(float) / tiles; /* with every input: all of it, when the last tile is done */
        const Ahead ahead = {next ? (const char *)next + tile * bytes * num_inputs : NULL, bytes};
        const float *of_rows = x + row * x_stride;
        float *to = sums + row * PANEL;
#define PANEL_CASE(rows) \
    case rows: multiply_panels(rows, 1, of_rows, x_stride, w, 0, num_inputs, ahead, to, 0); break;
        switch (rows) {
            PANEL_CASE(1) PANEL_CASE(2) PANEL_CASE(3) PANEL_CASE(4) PANEL_CASE(5) PANEL_CASE(6)
#if PANEL_ROWS > 6
            PANEL_CASE(7) PANEL_CASE(8) PANEL_CASE(9) PANEL_CASE(10) PANEL_CASE(11) PANEL_CASE(12)
#endif
        }
#undef PANEL_CASE
    }
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
        const Ahead none = {NULL, 0};
        if (count > 1) multiply_panels(1, SIDE_BY_SIDE, x, 0, w + panel * stride, stride, weight->inputs, none, sums, PANEL);
        else multiply_panels(1, 1, x, 0, w + panel * stride, stride, weight->inputs, none, sums, PANEL);
        for (int64_t p = 0; p < count; p++, panel++) store_panel(weight, panel, 1, sums + p * PANEL, y, 0);
    }
}
