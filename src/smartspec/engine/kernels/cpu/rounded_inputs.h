/* Inputs of linears on weights in blocks, rounded to 8 bits: of each row and 32 inputs a scale and 32 whole numbers.
 *
 * The scale is the largest magnitude over 127, as in llama.cpp's Q8_0 and Q8_1; numbers are rounded to the nearest, ties to
 * even. A row's blocks depend on nothing but the row. In memory: [tiles, inputs / 32, rows of the tile], so that a tile of any
 * height is read from one end to the other.
 *
 * Two terms are 16 bits: the second is what the first has left, rounded in the same way. In memory the terms of a block follow
 * each other.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "dequantise.h"

/* Whether more than ROUNDED_ROWS rows are multiplied with panels that are unpacked into memory (int8_tiles.h), in tiles of
 * UNPACKED_ROWS: sums of 16 bits and a word of weights, for both halves of a panel, fill the registers. */
#if LANES == 8 && !defined(__AVXVNNI__)
#define UNPACKS_INT8 1
#else
#define UNPACKS_INT8 0
#endif
#define UNPACKED_ROWS 6

/* Rows of a tile at most. */
#if LANES == 16
#define ROUNDED_ROWS 16 /* sums and 8 words of weights fill the registers */
#else
#define ROUNDED_ROWS 8 /* the words are read from memory again for each row, which costs less than unpacking them more often */
#endif

/* quants: 8 words of 4; of every 8 inputs the even ones, then the odd ones, as a panel has its weights. A sum is of quants,
 * less_sum its negative: of all 32, of the first 16 and of the last 16 inputs. */
typedef struct {
    int8_t quants[GROUP];
    float scale, scaled_sum;
    int32_t less_sum[3];
} RoundedBlock;

typedef int8_t block_bytes __attribute__((vector_size(GROUP)));

/* Below this the factor that rounds could overflow and the scale have few digits left. */
#define TINY 0x1p-100f

INLINE float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Numbers of a block whose scale may have no more digits than its inputs: it is rounded up, so that none exceeds 127. Returns
 * the scale. */
static float round_tiny_block(const float *x, float largest, int32_t *numbers) {
    float scale = (float)(largest / 127.0);
    if (scale * 127.0 < largest) {
        int32_t bits;
        memcpy(&bits, &scale, 4);
        scale = float_of(bits + 1);
    }
    for (int i = 0; i < GROUP; i++) numbers[i] = largest > 0.0f ? (int32_t)__builtin_rint((double)x[i] / scale) : 0;
    return scale;
}

/* Numbers of a block in the order of its inputs. Returns the scale, which is no number where an input is not finite. */
static inline float round_numbers(const float *x, int32_t *numbers) {
    int32_t largest = 0; /* as bits, which are ordered as magnitudes are, what is not finite above all others */
    for (int i = 0; i < GROUP; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    asm("" : "+r"(largest)); /* one division for each block: several at once would be approximated */
    const float magnitude = float_of(largest);
    if (largest >= 0x7f800000) {
        memset(numbers, 0, GROUP * sizeof(int32_t));
        return float_of(0x7fc00000);
    }
    if (magnitude < TINY) return round_tiny_block(x, magnitude, numbers);
    const float factor = 127.0f / magnitude;
    for (int i = 0; i < GROUP; i++) numbers[i] = (int32_t)__builtin_rintf(x[i] * factor);
    return magnitude / 127.0f;
}

/* One term of a block. numbers: its quants in the order of the inputs, for the next term. */
static void round_block(const float *x, RoundedBlock *to, int32_t *numbers) {
    int8_t quants[GROUP] ALIGNED;
    ints firsts = {0}, lasts = {0};
    to->scale = round_numbers(x, numbers);
    for (int i = 0; i < GROUP / 2; i += LANES) {
        firsts += *(const ints *)(numbers + i);
        lasts += *(const ints *)(numbers + GROUP / 2 + i);
    }
    const int32_t first = sum_of_ints(firsts), last = sum_of_ints(lasts);
    to->less_sum[0] = -first - last;
    to->less_sum[1] = -first;
    to->less_sum[2] = -last;
    to->scaled_sum = to->scale * (float)(first + last);
    for (int i = 0; i < GROUP; i++) quants[i] = (int8_t)numbers[i];
    const block_bytes order = {0,  2,  4,  6,  1,  3,  5,  7,  8,  10, 12, 14, 9,  11, 13, 15,
                               16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27, 29, 31};
    const block_bytes ordered = __builtin_shuffle(*(const block_bytes *)quants, order);
    memcpy(to->quants, &ordered, GROUP);
}

static inline int64_t rounded_tiles(int64_t num_rows) {
    const int64_t most = UNPACKS_INT8 && num_rows > ROUNDED_ROWS ? UNPACKED_ROWS : ROUNDED_ROWS;
    return (num_rows + most - 1) / most;
}

/* First row of one of num_tiles tiles, which are of one height, or nearly so. */
static inline int64_t tile_begin(int64_t num_rows, int64_t tile) { return num_rows * tile / rounded_tiles(num_rows); }

/* Row `row` of num_rows, x [inputs], into its places in `to`, [num_rows * inputs / 32 * terms]. */
static void round_row(const float *x, int64_t inputs, int64_t terms, int64_t row, int64_t num_rows, RoundedBlock *to) {
    const int64_t tile = ((row + 1) * rounded_tiles(num_rows) - 1) / num_rows, begin = tile_begin(num_rows, tile);
    const int64_t height = tile_begin(num_rows, tile + 1) - begin, groups = inputs / GROUP;
    RoundedBlock *place = to + begin * groups * terms + row - begin;
    int32_t numbers[GROUP] ALIGNED;
    float left[GROUP] ALIGNED;
    for (int64_t g = 0; g < groups; g++, x += GROUP, place += height) {
        round_block(x, place, numbers);
        if (terms == 1) continue;
        for (int i = 0; i < GROUP; i++) left[i] = __builtin_fmaf(-place->scale, (float)numbers[i], x[i]);
        place += height;
        round_block(left, place, numbers);
    }
}
