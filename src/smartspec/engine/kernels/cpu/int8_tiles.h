/* Rows in 8 bits times a panel in blocks, for AVX2: its registers hold neither a group's words beside the sums of several rows
 * nor products of 4 bytes. Read again for each row, the words alone take longer to load than all instructions on them.
 *
 * Here a tile of rows reads each word once, for both halves of the panel: of few rows as it is unpacked, of many rows from
 * memory, into which groups are unpacked once for all of them. Sums are made as add_block (int8_panels.h) makes them, so they
 * have the same bits.
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

/* Word k of half v: as unpack_groups left it or, where `unpacked` is NULL, unpacked now. Read once for all rows of a tile. */
INLINE ints word_of(const int64_t type, const UnpackedGroup *unpacked, const PanelGroup *packed, const int k, const int v) {
    ints word = unpacked ? unpacked->words[k][v] : panel_word(type, packed, k, v);
    asm("" : "+x"(word)); /* here: gcc would rather unpack all words first, and keep them in memory */
    return word;
}

/* products [num_rows][2] = words first .. first + count of a group times those of a tile's rows. */
INLINE void multiply_words(const int64_t type, const int num_rows, const UnpackedGroup *unpacked, const PanelGroup *packed,
                           const int first, const int count, const RoundedBlock *x, ints (*products)[2]) {
    const int in_words = words_in_16_bits(type);
#pragma GCC unroll 8
    for (int begin = first; begin < first + count; begin += in_words) {
        word_pairs pairs[UNPACKED_ROWS][2];
#pragma GCC unroll 8
        for (int k = begin; k < begin + in_words; k++) {
            const ints words[2] = {word_of(type, unpacked, packed, k, 0), word_of(type, unpacked, packed, k, 1)};
#pragma GCC unroll 8
            for (int r = 0; r < num_rows; r++) {
                const ints numbers = four_quants(x[r].quants + 4 * k);
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    const word_pairs product = multiply_bytes(type, words[v], numbers);
                    if (k == begin) pairs[r][v] = product;
                    else add_words(&pairs[r][v], product);
                }
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

/* sums [num_rows][2] += a tile of rows, one term of them, times a group, which is one of the two. */
INLINE void add_group(const int64_t type, const int num_rows, const UnpackedGroup *unpacked, const PanelGroup *packed,
                      const RoundedBlock *x, lanes (*sums)[2]) {
    const int parts = type == TYPE_PANELS_Q6_K ? 2 : 1, count = WORDS / parts;
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        ints products[UNPACKED_ROWS][2];
        multiply_words(type, num_rows, unpacked, packed, part * count, count, x, products);
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                const ints all = products[r][v] + offset_product(type, x + r, part);
                const lanes scaled = as_floats(all) * (unpacked ? unpacked->scale[v][part] : packed->scale[v][part]);
                sums[r][v] = fused_multiply_add(scaled, (lanes){0} + x[r].scale, sums[r][v]);
                if (!has_minimum(type)) continue;
                const lanes offset = unpacked ? unpacked->offset[v] : packed->offset[v][0];
                sums[r][v] = fused_multiply_add(offset, (lanes){0} + x[r].scaled_sum, sums[r][v]);
            }
    }
}

/* sums [num_rows][2] += a tile of rows times unpacked groups of a panel; type and num_rows are constants where inlined. */
INLINE void multiply_groups(const int64_t type, const int num_rows, const RoundedBlock *x, int64_t terms,
                            const UnpackedGroup *groups, int64_t num_groups, lanes (*sums)[2]) {
    for (int64_t block = 0; block < num_groups * terms; block++, x += num_rows) /* of one term or two */
        add_group(type, num_rows, groups + (block >> (terms - 1)), NULL, x, sums);
}

/* sums [num_rows, PANEL] = a tile of few rows times a panel, unpacked in registers. */
INLINE void multiply_few_rows(const int64_t type, const int num_rows, const RoundedBlock *x, int64_t terms,
                              const uint8_t *panel, int64_t num_groups, float *sums) {
    lanes of_rows[UNPACKED_ROWS][2] = {0};
    PanelGroup group = {0};
    for (int64_t g = 0; g < num_groups; g++) {
        const uint8_t *from = panel + group_place(type, g);
        read_panel_group(type, from, g, 2, 0, &group);
#pragma GCC unroll 40
        for (int64_t line = 0; line < group_bytes(type) * PANEL; line += 64) __builtin_prefetch(from + PREFETCHED + line);
        for (int64_t term = 0; term < terms; term++, x += num_rows) add_group(type, num_rows, NULL, &group, x, of_rows);
    }
    memcpy(sums, of_rows, num_rows * sizeof(of_rows[0]));
}

/* Whether so many rows are multiplied in this way. Quants of 8 bits need no unpacking, and more registers. */
static inline int unpacks_int8(int64_t type, int64_t num_rows) { return type != TYPE_PANELS_Q8_0 && num_rows > ROUNDED_ROWS; }

static void unpack_groups_of(int64_t type, const uint8_t *panel, int64_t first, int64_t num_groups, UnpackedGroup *to) {
    switch (type) {
#define UNPACK_GROUPS_CASE(type) case type: unpack_groups(type, panel, first, num_groups, to); return;
        FOR_EACH_UNPACKED_TYPE(UNPACK_GROUPS_CASE)
    }
}

/* multiply_groups by type and by a tile's height. Unpacked, types differ by the bits of a quant and whether they have minima. */
static void tile_times_groups(int64_t type, int64_t num_rows, const RoundedBlock *x, int64_t terms,
                              const UnpackedGroup *groups, int64_t num_groups, lanes (*sums)[2]) {
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
            tile_times_groups(weight->type, rows, of_tile, terms, groups, count, (lanes(*)[2])(sums + (row - first_row) * PANEL));
        }
    }
}

#define FEW_ROWS_FUNCTION(type, rows) MULTIPLY_FUNCTION(few_##type##_##rows, multiply_few_rows, type, rows)
#define FOR_FEW_ROWS(USE, type) USE(type, 2) USE(type, 3) USE(type, 4) USE(type, 5)
#define FEW_ROWS_FUNCTIONS(type) FOR_FEW_ROWS(FEW_ROWS_FUNCTION, type)
FOR_EACH_UNPACKED_TYPE(FEW_ROWS_FUNCTIONS)

/* Up to ROUNDED_ROWS rows, a tile of x, times a panel of a weight in blocks, in the way that is fastest for so many rows. */
static void rounded_rows_times_panel(const Weight *weight, int64_t panel, const RoundedBlock *x, int64_t num_rows,
                                     float *sums) {
    const uint8_t *w = weight->blocks + panel * weight->row_bytes;
    const int64_t groups = weight->inputs / GROUP;
    switch (weight->type) {
#define FEW_ROWS_CASE(type, rows) case rows: few_##type##_##rows(x, weight->rounds, w, groups, sums); return;
#define ROWS_CASES(type)                                                                  \
    case type:                                                                            \
        switch (num_rows) {                                                               \
            FOR_FEW_ROWS(FEW_ROWS_CASE, type)                                             \
            ROUNDED_CASE(type, 1) ROUNDED_CASE(type, 6) ROUNDED_CASE(type, 7) ROUNDED_CASE(type, 8) \
        }
        FOR_EACH_UNPACKED_TYPE(ROWS_CASES)
    case TYPE_PANELS_Q8_0:
        switch (num_rows) { FOR_EACH_ROUNDED_ROWS(ROUNDED_CASE, TYPE_PANELS_Q8_0) }
    }
}
#endif
