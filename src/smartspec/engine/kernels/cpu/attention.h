/* Attention of a ragged batch over slot-contiguous KV, fp32, for processors.
 *
 * The same code serves prefill chunks, decoding and verification alike: no padding to the longest context, no mask, nothing
 * computed behind the diagonal, keys and values read once per tile of queries. Softmax is computed online over spans
 * of keys (Milakov and Gimelshein, arXiv 1805.02867), as in flash attention.
 *
 * A task is one (tile, key head): up to MAX_ROWS queries (tokens x group_size) of one request, which see the same keys.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "exponential.h"
#include "lanes.h"

#define BLOCK (2 * LANES) /* keys that are scored together, and values that are summed together */
#define SPAN 128    /* keys per softmax: several blocks, so that its sums over vectors are few */
#define MAX_ROWS 256
#define MAX_HEAD_DIM 256
#define TILE 6      /* rows whose scores, or sums of values, stay in 16 registers together with what they are made of */
/* Up to FEW_ROWS single dot products are faster than transposing the keys. */
#if LANES == 16
#define FEW_ROWS 8
#else
#define FEW_ROWS 16
#endif
#define HIDDEN -1e30f

/* Fields of a tile: slot, first place, first row, number of tokens, base. base is the first place that not every token
 * of a draft tree sees; negative where there is no tree and a token sees all places up to its own. */
#define TILE_FIELDS 5

typedef struct {
    const float *query, *key, *value; /* new tokens: row and head strides below, head_dim contiguous */
    float *keys, *values;             /* one layer of the cache: [slots, num_kv_heads, max_len, head_dim] */
    float *output;                    /* [rows, num_kv_heads * group_size, head_dim] */
    const int64_t *tiles;             /* [num_tiles, TILE_FIELDS]: see below */
    const uint64_t *ancestors;        /* [rows], used by tiles of trees: bit b says that a row sees place base + b */
    int64_t query_row, query_head, key_row, key_head, value_row, value_head; /* strides in elements */
    int64_t num_tiles, num_kv_heads, group_size, max_len, head_dim, window;  /* window 0: none */
    float scale;
} Attention;

/* Rows of query and acc are head_dim apart: at a fixed, larger distance they would fight for the same cache lines. */
typedef struct {
    float query[(MAX_ROWS + TILE) * MAX_HEAD_DIM], acc[(MAX_ROWS + TILE) * MAX_HEAD_DIM];
    float scores[MAX_ROWS + TILE][SPAN], transposed[MAX_HEAD_DIM][BLOCK];
    float maximum[MAX_ROWS], sum[MAX_ROWS];
} Work;

static inline float *cached(const Attention *a, float *base, int64_t slot, int64_t head) {
    return base + (slot * a->num_kv_heads + head) * a->max_len * a->head_dim;
}

static void write_new(const Attention *a, const int64_t *tile, int64_t head) {
    float *keys = cached(a, a->keys, tile[0], head), *values = cached(a, a->values, tile[0], head);
    const size_t bytes = a->head_dim * sizeof(float);
    for (int64_t t = 0; t < tile[3]; t++) {
        const int64_t row = tile[2] + t, place = (tile[1] + t) * a->head_dim;
        memcpy(keys + place, a->key + row * a->key_row + head * a->key_head, bytes);
        memcpy(values + place, a->value + row * a->value_row + head * a->value_head, bytes);
    }
}

static inline void score_few(Work *w, const float *keys, int64_t num_rows, int64_t num_keys, int64_t head_dim) {
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t j = 0; j < num_keys; j++) {
            float score = 0.0f;
            for (int64_t d = 0; d < head_dim; d++) score += w->query[r * head_dim + d] * keys[j * head_dim + d];
            w->scores[r][j] = score;
        }
}

/* w->transposed [head_dim, BLOCK] of keys [num_keys, head_dim]. */
static inline void transpose_keys(Work *w, const float *keys, int64_t num_keys, int64_t head_dim) {
    int64_t whole = 0; /* keys in squares of LANES */
#if LANES == 16
    whole = num_keys / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
        for (int64_t d = 0; d < head_dim; d += LANES)
            transpose_square(keys + j * head_dim + d, head_dim, &w->transposed[d][j], BLOCK);
#endif
    for (int64_t j = whole; j < num_keys; j++)
        for (int64_t d = 0; d < head_dim; d++) w->transposed[d][j] = keys[j * head_dim + d];
}

/* Scores of one block of keys, the first of which is number `first` of the span. */
static inline void score_block(Work *w, const float *keys, int64_t num_rows, int64_t first, int64_t num_keys,
                               int64_t head_dim) {
    transpose_keys(w, keys, num_keys, head_dim);
    for (int64_t r = 0; r < num_rows; r += TILE) {
        lanes low[TILE] = {0}, high[TILE] = {0};
        const float *query = w->query + r * head_dim;
        for (int64_t d = 0; d < head_dim; d++) {
            const lanes k_low = *(const lanes *)&w->transposed[d][0], k_high = *(const lanes *)&w->transposed[d][LANES];
#pragma GCC unroll 6
            for (int i = 0; i < TILE; i++) {
                low[i] += query[i * head_dim + d] * k_low;
                high[i] += query[i * head_dim + d] * k_high;
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < TILE; i++) {
            *(lanes *)&w->scores[r + i][first] = low[i];
            *(lanes *)&w->scores[r + i][first + LANES] = high[i];
        }
    }
}

static inline void score_many(Work *w, const float *keys, int64_t num_rows, int64_t num_keys, int64_t head_dim) {
    for (int64_t first = 0; first < num_keys; first += BLOCK)
        score_block(w, keys + first * head_dim, num_rows, first, num_keys - first < BLOCK ? num_keys - first : BLOCK,
                    head_dim);
}

/* Scores of one row -> weights, num_keys of them; keys outside [first, last] are hidden. Returns the factor for what was
 * summed before. */
static inline float softmax_span(float *scores, int64_t num_keys, int64_t first, int64_t last, float *maximum,
                                 float *sum) {
    float span_maximum = *maximum, total = 0.0f;
    for (int64_t j = 0; j < first && j < num_keys; j++) scores[j] = HIDDEN;
    for (int64_t j = last < -1 ? 0 : last + 1; j < num_keys; j++) scores[j] = HIDDEN;
    for (int64_t j = 0; j < num_keys; j++) span_maximum = scores[j] > span_maximum ? scores[j] : span_maximum;
    if (span_maximum <= HIDDEN) { /* nothing to see yet */
        memset(scores, 0, num_keys * sizeof(float));
        return 1.0f;
    }
    for (int64_t j = 0; j < num_keys; j++) {
        scores[j] = exponential(scores[j] - span_maximum);
        total += scores[j];
    }
    const float correction = *maximum == span_maximum ? 1.0f : exponential(*maximum - span_maximum);
    *sum = *sum * correction + total;
    *maximum = span_maximum;
    return correction;
}

/* Position of a token of a tree: the ancestors before it, counted from base. */
static inline int64_t tree_position(const Attention *a, int64_t row, int64_t base) {
    return base + __builtin_popcountll(a->ancestors[row]) - 1;
}

/* Hides the keys of a span that a token of a tree does not see: places from base on that are not among its ancestors,
 * or are older than the window. first: place of the span's first key. */
static inline void hide_strangers(const Attention *a, float *scores, int64_t row, int64_t base, int64_t first,
                                  int64_t num_keys) {
    uint64_t seen = a->ancestors[row];
    while (a->window && __builtin_popcountll(seen) > a->window) seen &= seen - 1;
    for (int64_t j = first < base ? base - first : 0; j < num_keys; j++)
        if (first + j - base > 63 || !(seen >> (first + j - base) & 1)) scores[j] = HIDDEN;
}

static inline void add_values_few(Work *w, const float *values, int64_t num_rows, int64_t num_keys, int64_t head_dim) {
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t j = 0; j < num_keys; j++)
            for (int64_t d = 0; d < head_dim; d++)
                w->acc[r * head_dim + d] += w->scores[r][j] * values[j * head_dim + d];
}

static inline void add_values_many(Work *w, const float *values, int64_t num_rows, int64_t num_keys, int64_t head_dim) {
    for (int64_t r = 0; r < num_rows; r += TILE)
        for (int64_t part = 0; part < head_dim; part += BLOCK) {
            lanes low[TILE], high[TILE];
            float *acc = w->acc + r * head_dim + part;
#pragma GCC unroll 6
            for (int i = 0; i < TILE; i++) {
                low[i] = *(const lanes *)(acc + i * head_dim);
                high[i] = *(const lanes *)(acc + i * head_dim + LANES);
            }
            for (int64_t j = 0; j < num_keys; j++) {
                const float *value = values + j * head_dim + part;
                const lanes v_low = *(const lanes *)value, v_high = *(const lanes *)(value + LANES);
#pragma GCC unroll 6
                for (int i = 0; i < TILE; i++) {
                    low[i] += w->scores[r + i][j] * v_low;
                    high[i] += w->scores[r + i][j] * v_high;
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < TILE; i++) {
                *(lanes *)(acc + i * head_dim) = low[i];
                *(lanes *)(acc + i * head_dim + LANES) = high[i];
            }
        }
}

/* head_dim is passed apart from a, so that calls with a constant get loops of constant length. */
static inline void attend(const Attention *a, const int64_t *tile, int64_t head, int64_t head_dim, Work *w) {
    const int64_t start = tile[1], row = tile[2], num_tokens = tile[3], end = start + num_tokens, base = tile[4];
    const int64_t least = base < 0 ? start : base; /* no token of the tile has a smaller position */
    const int64_t group_size = a->group_size, num_rows = num_tokens * group_size;
    const float *keys = cached(a, a->keys, tile[0], head), *values = cached(a, a->values, tile[0], head);
    const int many = num_rows > FEW_ROWS && head_dim % BLOCK == 0;

    memset(w->query + num_rows * head_dim, 0, TILE * head_dim * sizeof(float));
    memset(w->acc, 0, (num_rows + TILE) * head_dim * sizeof(float));
    memset(w->scores[num_rows], 0, TILE * sizeof(w->scores[0]));
    for (int64_t r = 0; r < num_rows; r++) {
        const float *query = a->query + (row + r / group_size) * a->query_row +
                             (head * group_size + r % group_size) * a->query_head;
        for (int64_t d = 0; d < head_dim; d++) w->query[r * head_dim + d] = query[d] * a->scale;
        w->maximum[r] = HIDDEN;
        w->sum[r] = 0.0f;
    }
    for (int64_t begin = a->window && least >= a->window ? (least + 1 - a->window) / BLOCK * BLOCK : 0; begin < end;
         begin += SPAN) {
        const int64_t num_keys = end - begin < SPAN ? end - begin : SPAN;
        if (many) score_many(w, keys + begin * head_dim, num_rows, num_keys, head_dim);
        else score_few(w, keys + begin * head_dim, num_rows, num_keys, head_dim);
        for (int64_t r = 0; r < num_rows; r++) {
            const int64_t place = start + r / group_size, token = row + r / group_size;
            const int64_t position = base < 0 ? place : tree_position(a, token, base);
            const int64_t oldest = a->window ? position + 1 - a->window : 0;
            if (base >= 0) hide_strangers(a, w->scores[r], token, base, begin, num_keys);
            /* A window counts positions; what it leaves of a tree has been hidden already. */
            const int64_t first = base >= 0 && oldest > base ? base : oldest;
            const float correction = softmax_span(w->scores[r], num_keys, first - begin, place - begin,
                                                  &w->maximum[r], &w->sum[r]);
            if (correction != 1.0f)
                for (int64_t d = 0; d < head_dim; d++) w->acc[r * head_dim + d] *= correction;
        }
        if (many) add_values_many(w, values + begin * head_dim, num_rows, num_keys, head_dim);
        else add_values_few(w, values + begin * head_dim, num_rows, num_keys, head_dim);
    }
    for (int64_t r = 0; r < num_rows; r++) {
        float *output = a->output + ((row + r / group_size) * a->num_kv_heads * group_size + head * group_size +
                                     r % group_size) * head_dim;
        for (int64_t d = 0; d < head_dim; d++) output[d] = w->acc[r * head_dim + d] / w->sum[r];
    }
}

/* Work of a whole team, all of whose threads call it. Every tile must have number of tokens * group_size <= MAX_ROWS, and
 * head_dim <= MAX_HEAD_DIM. */
static void attend_in_team(const Attention *a) {
    const int64_t num_tasks = a->num_tiles * a->num_kv_heads;
    Work work;
    /* All writes before any reading: tiles of one request see each other's keys. */
#pragma omp for schedule(static)
    for (int64_t task = 0; task < num_tasks; task++)
        write_new(a, a->tiles + task / a->num_kv_heads * TILE_FIELDS, task % a->num_kv_heads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < num_tasks; task++) {
        const int64_t *tile = a->tiles + task / a->num_kv_heads * TILE_FIELDS, head = task % a->num_kv_heads;
        if (a->head_dim == 64) attend(a, tile, head, 64, &work);
        else if (a->head_dim == 128) attend(a, tile, head, 128, &work);
        else attend(a, tile, head, a->head_dim, &work);
    }
}
