/* Scores of keys and sums of values of one span, for all rows of a tile of attention.h: the products of matrices that
 * attention consists of.
 */
#pragma once

#include <stdint.h>

#include "lanes.h"

#define BLOCK (2 * LANES) /* keys that are scored together, and numbers of a value that are summed together */
#define SPAN 128 /* keys per softmax: several blocks, so that its sums over vectors are few; spans begin at multiples of it */
#define MAX_ROWS 256
#define MAX_HEAD_DIM 256
#define TILE 6 /* rows whose scores, or sums of values, stay in 16 registers together with what they are made of */
#define FEW_ROWS (TILE / 2) /* so many alone take twice the keys, or numbers: fewer sums would wait for themselves */

/* Rows of query and acc are head_dim apart: at a fixed, larger distance they would fight for the same cache lines.
 * maximum: exponent of the power of two that a row's weights are relative to. */
typedef struct {
    float query[MAX_ROWS * MAX_HEAD_DIM], acc[MAX_ROWS * MAX_HEAD_DIM];
    float scores[MAX_ROWS][SPAN], transposed[MAX_HEAD_DIM * 2 * BLOCK];
    float maximum[MAX_ROWS], sum[MAX_ROWS][LANES];
} Work;

/* Some keys and values in a row and the rows that look at them. keys, values: [num_keys, head_dim]. first_sees: so many of
 * them row 0 sees at most, and each token's rows one more than those of the token before. */
typedef struct {
    const float *keys, *values;
    int64_t num_keys, num_rows, group_size, first_sees;
} Span;

static inline int64_t keys_seen(const Span *s, int64_t row) {
    const int64_t sees = s->first_sees + row / s->group_size;
    return sees < 0 ? 0 : sees < s->num_keys ? sees : s->num_keys;
}

/* w->transposed [head_dim, width] of keys [num_keys, head_dim], 0 in columns of no key. */
static inline void transpose_keys(Work *w, const float *keys, int64_t num_keys, int64_t head_dim, const int64_t width) {
    for (int64_t j = 0; j < width; j += LANES) {
        const int64_t left = num_keys - j, count = left < 0 ? 0 : left < LANES ? left : LANES;
        const float *from = keys + j * head_dim;
        float *to = w->transposed + j;
        int64_t d = 0;
        for (; !count && d < head_dim; d++) *(lanes *)(to + d * width) = (lanes){0};
        for (; d + LANES <= head_dim; d += LANES)
            if (count == LANES) transpose_square(from + d, LANES, head_dim, to + d * width, width);
            else transpose_square(from + d, count, head_dim, to + d * width, width);
        for (; d < head_dim; d++)
            for (int64_t i = 0; i < LANES; i++) to[d * width + i] = i < count ? from[i * head_dim + d] : 0.0f;
    }
}

/* Scores of some rows and of the keys in w->transposed, which are so many vectors: scores [num_rows, SPAN]. The first two
 * counts are constants where inlined. */
INLINE void score_rows(const int num_rows, const int vectors, const Work *w, const float *query, float *scores,
                       int64_t head_dim) {
    lanes sums[2 * TILE] = {0};
    const lanes *keys = (const lanes *)w->transposed;
    for (int64_t d = 0; d < head_dim; d++, keys += vectors)
#pragma GCC unroll 6
        for (int i = 0; i < num_rows; i++) {
            const lanes number = query[i * head_dim + d] - (lanes){0};
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[i * vectors + v] = multiply_add(number, keys[v], sums[i * vectors + v]);
        }
#pragma GCC unroll 6
    for (int i = 0; i < num_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) *(lanes *)(scores + i * SPAN + v * LANES) = sums[i * vectors + v];
}

/* acc [num_rows, head_dim] += weights [num_rows, SPAN] times values [num_keys, head_dim]: so many vectors of columns. The
 * first two counts are constants where inlined. */
INLINE void add_columns(const int num_rows, const int vectors, const float *weights, const float *values, int64_t num_keys,
                        int64_t head_dim, float *acc) {
    lanes sums[2 * TILE];
#pragma GCC unroll 6
    for (int i = 0; i < num_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[i * vectors + v] = *(const lanes *)(acc + i * head_dim + v * LANES);
    for (int64_t j = 0; j < num_keys; j++, values += head_dim)
#pragma GCC unroll 6
        for (int i = 0; i < num_rows; i++) {
            const lanes weight = weights[i * SPAN + j] - (lanes){0};
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[i * vectors + v] = multiply_add(weight, *(const lanes *)(values + v * LANES), sums[i * vectors + v]);
        }
#pragma GCC unroll 6
    for (int i = 0; i < num_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) *(lanes *)(acc + i * head_dim + v * LANES) = sums[i * vectors + v];
}

/* vectors: at most so many columns at once, 2 or 4. */
INLINE void add_values_of_rows(const int num_rows, const int vectors, const float *weights, const float *values,
                               int64_t num_keys, int64_t head_dim, float *acc) {
    int64_t d = 0;
#define ADD_COLUMNS(count)                                                        \
    for (; count <= vectors && d + count * LANES <= head_dim; d += count * LANES) \
        add_columns(num_rows, count, weights, values + d, num_keys, head_dim, acc + d);
    ADD_COLUMNS(4)
    ADD_COLUMNS(2)
    ADD_COLUMNS(1)
    for (int i = 0; i < num_rows; i++)
        for (int64_t j = 0; j < num_keys; j++)
            for (int64_t rest = d; rest < head_dim; rest++)
                acc[i * head_dim + rest] += weights[i * SPAN + j] * values[j * head_dim + rest];
}

static inline void fetch(const float *from, int64_t num_floats) {
    for (int64_t i = 0; i < num_floats; i += 64 / sizeof(float)) __builtin_prefetch(from + i, 0, 2);
}

/* Fetches the values of `width` keys and the keys after them, none outside the span: memory that was never written is
 * slow to fetch. */
static inline void fetch_ahead(const Span *s, int64_t key, int64_t width, int64_t head_dim) {
    const int64_t left = s->num_keys - key, count = left < width ? left : width, rest = left - count;
    fetch(s->values + key * head_dim, count * head_dim);
    fetch(s->keys + (key + count) * head_dim, (rest < width ? rest : width) * head_dim);
}

/* Few rows alone, or rows in tiles of one height, or nearly so. USE is told how many vectors of sums each row has, and the
 * height; first_row and seen, the keys that its last row sees, are the tile's. */
#define FOR_EACH_TILE(s, USE)                                                                                 \
    for (int64_t tile = 0, tiles = (s->num_rows + TILE - 1) / TILE, first_row = 0; tile < tiles; tile++) {    \
        const int64_t next_row = s->num_rows * (tile + 1) / tiles, seen = keys_seen(s, next_row - 1);         \
        if (s->num_rows <= FEW_ROWS) switch (s->num_rows) { USE(1, 4) USE(2, 4) USE(3, 4) }                   \
        else switch (next_row - first_row) { USE(3, 2) USE(4, 2) USE(5, 2) USE(6, 2) }                        \
        first_row = next_row;                                                                                 \
    }

/* w->scores of the keys that rows see, and of some others. */
static inline void score_keys(const Span *s, Work *w, int64_t head_dim) {
#define SCORE_CASE(rows, vectors)                                                                                   \
    case rows:                                                                                                      \
        if (key < seen) score_rows(rows, vectors, w, w->query + first_row * head_dim, &w->scores[first_row][key], head_dim); \
        break;
    const int64_t width = s->num_rows <= FEW_ROWS ? 2 * BLOCK : BLOCK;
    for (int64_t key = 0; key < s->num_keys; key += width) {
        fetch_ahead(s, key, width, head_dim);
        transpose_keys(w, s->keys + key * head_dim, s->num_keys - key, head_dim, width);
        FOR_EACH_TILE(s, SCORE_CASE)
    }
}

/* w->acc of rows += w->scores, weights by then and 0 for keys that they do not see, times values. */
static inline void add_values(const Span *s, Work *w, int64_t head_dim) {
#define VALUES_CASE(rows, vectors)                                                                                       \
    case rows:                                                                                                           \
        add_values_of_rows(rows, vectors, w->scores[first_row], s->values, seen, head_dim, w->acc + first_row * head_dim); \
        break;
    FOR_EACH_TILE(s, VALUES_CASE)
}
