/* Many rows in 8 bits times a panel in blocks, whose groups are unpacked into memory once for all of them.
 *
 * For AVX2, whose registers hold neither a group's words beside the sums of several rows nor products of 4 bytes: read again
 * for each row, the words alone take longer to load than all instructions on them. Here a tile of rows reads each word once,
 * for both halves of the panel. Sums are made as add_block (int8_panels.h) makes them, so they have the same bits.
 */
#pragma once

#include "int8_panels.h"

#if UNPACKS_INT8
#define UNPACKED_GROUPS 8 /* at a time: those of a block of a K type; they and the sums stay in the first cache */
#define TILES_AT_ONCE 21 /* their sums, too */

typedef struct {
    ints words[WORDS][2]; /* panel_word of both halves of the outputs */
    lanes scale[2][2], offset[2];
} UnpackedGroup;

/* Groups first .. first + num_groups of a panel, first a multiple of 8. */
INLINE void unpack_groups(const int64_t type, const uint8_t *panel, int64_t first, int64_t num_groups, UnpackedGroup *to) {
    PanelGroup group = {0};
    for (int64_t g = first; g < first + num_groups; g++, to++) {
        const uint8_t *from = panel + group_place(type, g);
        read_panel_group(type, from, g, 2, 0, &group);
#pragma GCC unroll 40
        for (int64_t line = 0; line < group_bytes(type) * PANEL; line += 64) __builtin_prefetch(from + PREFETCHED + line);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
#pragma GCC unroll 8
            for (int k = 0; k < WORDS; k++) to->words[k][v] = panel_word(type, &group, k, v);
            to->scale[v][0] = group.scale[v][0];
            if (type == TYPE_PANELS_Q6_K) to->scale[v][1] = group.scale[v][1];
            if (has_minimum(type)) to->offset[v] = group.offset[v][0];
        }
    }
}

/* sum += add. Written so, every product is added at once: gcc would rather keep all of them, in memory, and add them later. */
INLINE void add_words(word_pairs *sum, word_pairs add) { asm("vpaddw %1, %0, %0" : "+x"(*sum) : "x"(add)); }

/* products [num_rows][2] = words first .. first + count of a group times those of a tile's rows. */
INLINE void multiply_words(const int64_t type, const int num_rows, const UnpackedGroup *group, const int first, const int count,
                           const RoundedBlock *x, ints (*products)[2]) {
    const int in_words = words_in_16_bits(type);
#pragma GCC unroll 8
    for (int begin = first; begin < first + count; begin += in_words) {
        word_pairs pairs[UNPACKED_ROWS][2];
#pragma GCC unroll 8
        for (int k = begin; k < begin + in_words; k++)
#pragma GCC unroll 8
            for (int r = 0; r < num_rows; r++) {
                const ints numbers = four_quants(x[r].quants + 4 * k);
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    const word_pairs product = multiply_bytes(type, group->words[k][v], numbers);
                    if (k == begin) pairs[r][v] = product;
                    else add_words(&pairs[r][v], product);
                }
            }
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                const ints sum = add_pairs(pairs[r][v]);
                products[r][v] = begin == first ? sum : (ints)(products[r][v] + sum);
            }
    }
}

/* sums [num_rows, PANEL] += a tile of rows times groups of a panel; type and num_rows are constants where inlined. */
INLINE void multiply_groups(const int64_t type, const int num_rows, const RoundedBlock *x, int64_t terms,
                            const UnpackedGroup *groups, int64_t num_groups, float *sums) {
    const int parts = type == TYPE_PANELS_Q6_K ? 2 : 1, count = WORDS / parts;
    for (int64_t block = 0; block < num_groups * terms; block++, x += num_rows) {
        const UnpackedGroup *group = groups + (block >> (terms - 1)); /* of one term or two */
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++) {
            ints products[UNPACKED_ROWS][2];
            multiply_words(type, num_rows, group, part * count, count, x, products);
#pragma GCC unroll 8
            for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    lanes *to = (lanes *)(sums + r * PANEL + v * LANES);
                    const ints all = products[r][v] + offset_product(type, x + r, part);
                    const lanes scaled = as_floats(all) * group->scale[v][part];
                    const lanes sum = fused_multiply_add(scaled, (lanes){0} + x[r].scale, *to);
                    if (has_minimum(type)) *to = fused_multiply_add(group->offset[v], (lanes){0} + x[r].scaled_sum, sum);
                    else *to = sum;
                }
        }
    }
}

/* Whether so many rows are multiplied in this way. Quants of 8 bits need no unpacking, and more registers. */
static inline int unpacks_int8(int64_t type, int64_t num_rows) { return type != TYPE_PANELS_Q8_0 && num_rows > ROUNDED_ROWS; }

static void unpack_groups_of(int64_t type, const uint8_t *panel, int64_t first, int64_t num_groups, UnpackedGroup *to) {
    switch (type) {
#define UNPACK_GROUPS_CASE(type) case type: unpack_groups(type, panel, first, num_groups, to); return;
        UNPACK_GROUPS_CASE(TYPE_PANELS_Q4_0) UNPACK_GROUPS_CASE(TYPE_PANELS_Q4_1) UNPACK_GROUPS_CASE(TYPE_PANELS_Q5_0)
        UNPACK_GROUPS_CASE(TYPE_PANELS_Q5_1) UNPACK_GROUPS_CASE(TYPE_PANELS_Q4_K) UNPACK_GROUPS_CASE(TYPE_PANELS_Q5_K)
        UNPACK_GROUPS_CASE(TYPE_PANELS_Q6_K)
    }
}

/* multiply_groups by type and by a tile's height. Unpacked, types differ by the bits of a quant and whether they have minima. */
static void tile_times_groups(int64_t type, int64_t num_rows, const RoundedBlock *x, int64_t terms,
                              const UnpackedGroup *groups, int64_t num_groups, float *sums) {
#define TILE_CASE(type, rows) case rows: multiply_groups(type, rows, x, terms, groups, num_groups, sums); return;
#define TILE_CASES(type) switch (num_rows) { TILE_CASE(type, 4) TILE_CASE(type, 5) TILE_CASE(type, 6) }
    switch (type) {
    case TYPE_PANELS_Q4_0: TILE_CASES(TYPE_PANELS_Q4_0)
    case TYPE_PANELS_Q4_1: case TYPE_PANELS_Q4_K: TILE_CASES(TYPE_PANELS_Q4_1)
    case TYPE_PANELS_Q5_0: TILE_CASES(TYPE_PANELS_Q5_0)
    case TYPE_PANELS_Q5_1: case TYPE_PANELS_Q5_K: TILE_CASES(TYPE_PANELS_Q5_1)
    case TYPE_PANELS_Q6_K: TILE_CASES(TYPE_PANELS_Q6_K)
    }
}

/* sums [rows of the tiles, PANEL] = tiles first .. last of num_rows rows, x, times a panel. */
static void tiles_times_panel(const Weight *weight, int64_t panel, const RoundedBlock *x, int64_t num_rows, int64_t first,
                              int64_t last, float *sums) {
    const int64_t num_groups = weight->inputs / GROUP, terms = weight->rounds, first_row = tile_begin(num_rows, first);
    UnpackedGroup groups[UNPACKED_GROUPS] ALIGNED;
    memset(sums, 0, (tile_begin(num_rows, last) - first_row) * PANEL * sizeof(float));
    for (int64_t g = 0; g < num_groups; g += UNPACKED_GROUPS) {
        const int64_t count = num_groups - g < UNPACKED_GROUPS ? num_groups - g : UNPACKED_GROUPS;
        unpack_groups_of(weight->type, weight->blocks + panel * weight->row_bytes, g, count, groups);
        for (int64_t tile = first; tile < last; tile++) {
            const int64_t row = tile_begin(num_rows, tile), rows = tile_begin(num_rows, tile + 1) - row;
            const RoundedBlock *of_tile = x + (row * num_groups + rows * g) * terms;
            tile_times_groups(weight->type, rows, of_tile, terms, groups, count, sums + (row - first_row) * PANEL);
        }
    }
}
#endif
