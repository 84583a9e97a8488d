/* Attention of a ragged batch over slot-contiguous KV, fp32, for processors.
 *
 * The same code serves prefill chunks, decoding and verification alike: no padding to the longest context, no mask, nothing
 * computed beyond the diagonal, keys and values read once per tile of queries. Softmax is computed online over spans
 * of keys (Milakov and Gimelshein, arXiv 1805.02867), as in flash attention.
 *
 * A task is one (tile, key head): up to MAX_ROWS queries (tokens x group_size) of one request, which see the same keys.
 *
 * A query has the same bits whatever shares its tile, and in a draft tree those that it has in plain text. A score is summed
 * in the order of dimensions, values in the order of places, weights in lanes by position: a key that is hidden adds an exact
 * 0. Weights are relative to a power of two, so a larger maximum rescales what was summed before without rounding, wherever
 * spans end (but for what is 2^126 times smaller).
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "attention_span.h"
#include "exponential.h"

#define HIDDEN -1e30f
#define LOG2_OF_E 1.44269504f

/* Fields of a tile: slot, first place, first row, number of tokens, base, sinks, window. base is the first place that not
 * every token of a draft tree sees; negative where there is no tree and a token sees all places up to its own. window: if
 * not 0, a token sees so many places up to its own and the first `sinks` ones, in layers that have no window themselves;
 * only without a tree. */
#define TILE_FIELDS 7

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

/* Scores of one row, of which 2^score is meant -> weights, num_keys of them; keys outside [first, last] are hidden but for
 * those before sinks. Returns the power of two by which what was summed before is to be multiplied. */
static inline float weigh_span(float *scores, int64_t num_keys, int64_t sinks, int64_t first, int64_t last, float *maximum) {
    const int64_t end = (num_keys + LANES - 1) / LANES * LANES, after = last < num_keys ? last + 1 : num_keys;
    for (int64_t j = sinks < 0 ? 0 : sinks; j < first && j < num_keys; j++) scores[j] = HIDDEN;
    for (int64_t j = after < 0 ? 0 : after; j < end; j++) scores[j] = HIDDEN;
    float largest = *maximum;
    for (int64_t j = 0; j < num_keys; j++) largest = scores[j] > largest ? scores[j] : largest;
    if (largest <= HIDDEN) { /* nothing to see yet */
        memset(scores, 0, end * sizeof(float));
        return 1.0f;
    }
    const float before = *maximum, now = __builtin_rintf(largest);
    for (int64_t j = 0; j < end; j++) {
        const float score = scores[j] < HIDDEN ? HIDDEN : scores[j], whole = __builtin_rintf(score);
        scores[j] = power_of_fraction(score - whole) * power_of_whole(whole - now);
    }
    *maximum = now;
    return power_of_whole(before - now);
}

/* What a layer and a tile hide: a layer that has a window hides what is older, from every tile. */
static inline int64_t window_of(const Attention *a, const int64_t *tile) { return a->window ? a->window : tile[6]; }
static inline int64_t sinks_of(const Attention *a, const int64_t *tile) { return a->window || !tile[6] ? 0 : tile[5]; }

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

/* sum [LANES] += weights of the keys at places first .. first + num_keys, each in the lane of its position. first is a
 * multiple of LANES, after num_keys lie weights of 0. base: where a tree begins, of which the row's token sees ancestors;
 * negative where there is none. */
static inline void sum_weights(float *sum, const float *weights, int64_t first, int64_t num_keys, int64_t base,
                               uint64_t ancestors) {
    const int is_text = base < 0 || base >= first + num_keys;
    const int64_t text = is_text ? num_keys : base < first ? 0 : base - first;
    const int64_t whole = is_text ? num_keys : text / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES) *(lanes *)sum += *(const lanes *)(weights + j);
    if (is_text) return;
    for (int64_t j = whole; j < text; j++) sum[j - whole] += weights[j];
    for (int64_t position = base; ancestors; ancestors &= ancestors - 1, position++) {
        const int64_t j = base + __builtin_ctzll(ancestors) - first;
        if (j >= 0 && j < num_keys) sum[position % LANES] += weights[j];
    }
}

/* What a row has seen before a span, as the span wants it. */
static inline void rescale(float factor, float *acc, int64_t head_dim, float *sum) {
    if (factor == 1.0f) return;
    for (int64_t d = 0; d < head_dim; d++) acc[d] *= factor;
    for (int64_t i = 0; i < LANES; i++) sum[i] *= factor;
}

/* Scores of the keys begin .. begin + num_keys -> weights, of all rows of a tile. */
static inline void weigh_keys(const Attention *a, const int64_t *tile, int64_t begin, int64_t num_keys, int64_t head_dim,
                              Work *w) {
    const int64_t group_size = a->group_size, base = tile[4], sinks = sinks_of(a, tile), window = window_of(a, tile);
    for (int64_t r = 0; r < tile[3] * group_size; r++) {
        const int64_t place = tile[1] + r / group_size, token = tile[2] + r / group_size;
        const int64_t position = base < 0 ? place : tree_position(a, token, base);
        const int64_t oldest = window ? position + 1 - window : 0;
        if (base >= 0) hide_strangers(a, w->scores[r], token, base, begin, num_keys);
        /* A window counts positions; what it leaves of a tree has been hidden already. */
        const int64_t first = base >= 0 && oldest > base ? base : oldest;
        const float factor = weigh_span(w->scores[r], num_keys, sinks - begin, first - begin, place - begin, &w->maximum[r]);
        rescale(factor, w->acc + r * head_dim, head_dim, w->sum[r]);
        sum_weights(w->sum[r], w->scores[r], begin, num_keys, base, base < 0 ? 0 : a->ancestors[token]);
    }
}

/* head_dim is passed apart from a, so that calls with a constant get loops of constant length. */
static inline void attend(const Attention *a, const int64_t *tile, int64_t head, int64_t head_dim, Work *w) {
    const int64_t start = tile[1], end = start + tile[3], row = tile[2];
    const int64_t least = tile[4] < 0 ? start : tile[4]; /* no token of the tile has a smaller position */
    const int64_t group_size = a->group_size, num_rows = tile[3] * group_size;
    const float *keys = cached(a, a->keys, tile[0], head), *values = cached(a, a->values, tile[0], head);
    const float scale = a->scale * LOG2_OF_E;

    memset(w->acc, 0, num_rows * head_dim * sizeof(float));
    memset(w->sum, 0, num_rows * sizeof(w->sum[0]));
    for (int64_t r = 0; r < num_rows; r++) {
        const float *query = a->query + (row + r / group_size) * a->query_row +
                             (head * group_size + r % group_size) * a->query_head;
        for (int64_t d = 0; d < head_dim; d++) w->query[r * head_dim + d] = query[d] * scale;
        w->maximum[r] = HIDDEN;
    }
    const int64_t window = window_of(a, tile), sinks = sinks_of(a, tile);
    const int64_t oldest = window && least >= window ? (least + 1 - window) / BLOCK * BLOCK : 0;
    for (int64_t begin = sinks ? 0 : oldest, next; begin < end; begin = next) {
        next = (begin / SPAN + 1) * SPAN;
        int64_t num_keys = (end < next ? end : next) - begin;
        if (begin < sinks && sinks < oldest) { /* between sinks and window nothing is read */
            num_keys = sinks - begin < num_keys ? sinks - begin : num_keys;
            if (begin + num_keys == sinks) next = oldest;
        }
        const int64_t first_sees = tile[4] < 0 ? start + 1 - begin : num_keys;
        const Span span = {keys + begin * head_dim, values + begin * head_dim, num_keys, num_rows, group_size, first_sees};
        score_keys(&span, w, head_dim);
        weigh_keys(a, tile, begin, num_keys, head_dim, w);
        add_values(&span, w, head_dim);
    }
    for (int64_t r = 0; r < num_rows; r++) {
        float *output = a->output + ((row + r / group_size) * a->num_kv_heads * group_size + head * group_size +
                                     r % group_size) * head_dim;
        const float share = 1.0f / sum_of(*(const lanes *)w->sum[r]);
        for (int64_t d = 0; d < head_dim; d++) output[d] = w->acc[r * head_dim + d] * share;
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
    /* Backwards: a prompt's last tiles, which see most keys, begin first, so that threads end together. */
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = num_tasks - 1; task >= 0; task--) {
        const int64_t *tile = a->tiles + task / a->num_kv_heads * TILE_FIELDS, head = task % a->num_kv_heads;
        if (a->head_dim == 64) attend(a, tile, head, 64, &work);
        else if (a->head_dim == 128) attend(a, tile, head, 128, &work);
        else attend(a, tile, head, a->head_dim, &work);
    }
}
