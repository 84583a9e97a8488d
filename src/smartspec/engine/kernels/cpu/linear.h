/* x @ weight.T + bias with the weight left as it lies, fp32 inputs and sums: what the dequantised weight gives, up to the
 * order of summation.
 *
 * Weights in panels, fp32 (panels.h) or blocks (block_panels.h), are multiplied as they lie; with many rows, blocks are
 * unpacked a panel at a time. So are, with any number of rows, blocks as GGUF stores them: a model is laid out by panels
 * before it serves, but for plain numbers of an odd width.
 */
#pragma once

#include "bf16_panels.h"
#include "int8_tiles.h"
#include "panels.h"

/* Up to DIRECT_ROWS rows of x times a panel in blocks, which is unpacked in registers. */
#define DIRECT_CASE(type, rows) \
    case rows: multiply_block_panel(type, rows, x, weight->inputs, w, weight->inputs, sums); return;
static void rows_times_block_panel(const Weight *weight, int64_t panel, const float *x, int64_t num_rows, float *sums) {
    const uint8_t *w = weight->blocks + panel * weight->row_bytes;
    switch (weight->type) {
#define BLOCK_PANEL_CASE(type) \
    case type:                 \
        switch (num_rows) { FOR_EACH_DIRECT_ROWS(DIRECT_CASE, type) }
        FOR_EACH_BLOCK_PANEL(BLOCK_PANEL_CASE)
    }
}

static inline int64_t unpack_rows(int64_t type) {
    return is_plain(type) ? UNPACK_ROWS_PLAIN : high_bits(type) ? UNPACK_ROWS_HIGH : UNPACK_ROWS;
}

/* As linear_slice, of blocks: rows are tiles of one height, or nearly so. */
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

/* As linear_slice, of blocks and with x rounded to 8 bits; see round_row. */
static void int8_slice(const Weight *weight, const RoundedBlock *x, int64_t num_rows, float *y, int64_t y_stride,
                       int64_t first, int64_t last) {
    const int64_t tiles = rounded_tiles(num_rows), groups = weight->inputs / GROUP;
    const int64_t tiles_at_once = MOST_ROWS / ROUNDED_ROWS;
    float sums[ROUNDED_ROWS * PANEL] ALIGNED;
    for (int64_t begin = 0; begin < tiles; begin += tiles_at_once)
        for (int64_t panel = first; panel < last; panel++)
            for (int64_t tile = begin; tile < tiles && tile < begin + tiles_at_once; tile++) {
                const int64_t row = tile_begin(num_rows, tile), rows = tile_begin(num_rows, tile + 1) - row;
                rounded_rows_times_panel(weight, panel, x + row * groups * weight->rounds, rows, sums);
                store_panel(weight, panel, rows, sums, y + row * y_stride, y_stride);
            }
}

#if UNPACKS_INT8
/* As int8_slice, where unpacks_int8: as many tiles at a time as fit, or nearly so. */
static void int8_tiles_slice(const Weight *weight, const RoundedBlock *x, int64_t num_rows, float *y, int64_t y_stride,
                             int64_t first, int64_t last) {
    const int64_t tiles = rounded_tiles(num_rows), turns = (tiles + TILES_AT_ONCE - 1) / TILES_AT_ONCE;
    float sums[TILES_AT_ONCE * UNPACKED_ROWS * PANEL] ALIGNED;
    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t begin = tiles * turn / turns, end = tiles * (turn + 1) / turns;
        const int64_t row = tile_begin(num_rows, begin), rows = tile_begin(num_rows, end) - row;
        for (int64_t panel = first; panel < last; panel++) {
            tiles_times_panel(weight, panel, x, num_rows, begin, end, sums);
            store_panel(weight, panel, rows, sums, y + row * y_stride, y_stride);
        }
    }
}
#endif

/* As linear_slice, of bfloat16 and with x rounded to it. */
static void bf16_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride, int64_t first,
                           int64_t last) {
    const int64_t inputs = weight->inputs, most_rows = ROUNDED_NUMBERS / inputs;
    uint16_t rounded[ROUNDED_NUMBERS] ALIGNED;
    float sums[DIRECT_ROWS * PANEL] ALIGNED;
    for (; num_rows > 0; num_rows -= most_rows, x += most_rows * inputs, y += most_rows * y_stride) {
        const int64_t count = num_rows < most_rows ? num_rows : most_rows, tiles = (count + DIRECT_ROWS - 1) / DIRECT_ROWS;
        round_to_bf16(x, count * inputs, rounded);
        for (int64_t panel = first; panel < last; panel++) {
            const uint8_t *w = weight->blocks + panel * weight->row_bytes;
            for (int64_t tile = 0; tile < tiles; tile++) {
                const int64_t row = count * tile / tiles, rows = count * (tile + 1) / tiles - row;
                bf16_rows_times_panel(rows, rounded + row * inputs, w, inputs, sums);
                store_panel(weight, panel, rows, sums, y + row * y_stride, y_stride);
            }
        }
    }
}

/* Outputs panel * PANEL and on of a weight in blocks, inputs first .. first + num_inputs, in fp32 as a panel. */
static void unpack_panel(const Weight *weight, int64_t panel, int64_t first, int64_t num_inputs, float *to) {
    switch (weight->type) {
#define UNPACK_CASE(type) \
    case type: unpack_block_panel(type, weight->blocks + panel * weight->row_bytes, first, num_inputs, to); return;
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

/* As linear_slice, of fp32, or of blocks of which a panel is unpacked part by part; up to MOST_ROWS rows. */
static void part_by_part_slice(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride,
                               int64_t first, int64_t last) {
    const int64_t inputs = weight->inputs;
    const int in_fp32 = weight->type == TYPE_PANELS;
    float sums[MOST_ROWS * PANEL] ALIGNED, unpacked[PANEL_INPUTS * PANEL] ALIGNED;
    for (int64_t panel = first; panel < last; panel++) {
        memset(sums, 0, num_rows * PANEL * sizeof(float));
        for (int64_t k = 0; k < inputs; k += PANEL_INPUTS) {
            const int64_t num_inputs = inputs - k < PANEL_INPUTS ? inputs - k : PANEL_INPUTS;
            const float *w = in_fp32 ? (const float *)weight->blocks + (panel * inputs + k) * PANEL : unpacked;
            if (!in_fp32) unpack_panel(weight, panel, k, num_inputs, unpacked);
            const float *next = in_fp32 ? w + PANEL_INPUTS * PANEL : NULL;
            multiply_rows_and_panel(num_rows, x + k, inputs, w, num_inputs, next, sums);
        }
        store_panel(weight, panel, num_rows, sums, y, y_stride);
    }
}

/* Whether linears on this weight read rounded blocks of x instead of x. */
static inline int reads_blocks(const Weight *weight) { return weight->rounds && !is_plain(weight->type); }

/* y [num_rows, y_stride], its columns first * PANEL .. last * PANEL or the last output. One thread's work. rounded: x as
 * round_row makes it, where reads_blocks. */
static void linear_slice(const Weight *weight, const float *x, const RoundedBlock *rounded, int64_t num_rows, float *y,
                         int64_t y_stride, int64_t first, int64_t last) {
    const int64_t inputs = weight->inputs;
#if UNPACKS_INT8
    if (reads_blocks(weight) && unpacks_int8(weight->type, num_rows)) {
        int8_tiles_slice(weight, rounded, num_rows, y, y_stride, first, last);
        return;
    }
#endif
    if (reads_blocks(weight)) {
        int8_slice(weight, rounded, num_rows, y, y_stride, first, last);
        return;
    }
    if (weight->rounds) {
        bf16_slice(weight, x, num_rows, y, y_stride, first, last);
        return;
    }
    if (weight->type == TYPE_PANELS && num_rows == 1) {
        panels_of_row(weight, x, y, first, last);
        return;
    }
    const int is_direct = weight->type < TYPE_PANELS && num_rows < unpack_rows(weight->type);
    for (int64_t row = 0; row < num_rows; row += MOST_ROWS) {
        const int64_t rows = num_rows - row < MOST_ROWS ? num_rows - row : MOST_ROWS;
        const float *of_rows = x + row * inputs;
        float *to = y + row * y_stride;
        if (is_direct) block_panels_slice(weight, of_rows, rows, to, y_stride, first, last);
        else part_by_part_slice(weight, of_rows, rows, to, y_stride, first, last);
    }
}

/* Panels [*first, *last) of one of num_threads equal shares. */
static inline void share_of_panels(const Weight *weight, int64_t thread, int64_t num_threads, int64_t *first, int64_t *last) {
    const int64_t panels = (weight->outputs + PANEL - 1) / PANEL;
    *first = panels * thread / num_threads;
    *last = panels * (thread + 1) / num_threads;
}
