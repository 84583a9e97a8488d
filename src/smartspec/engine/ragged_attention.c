/* Attention of few new tokens per request over slot-contiguous KV, fp32, for processors.
 *
 * One call serves a ragged batch: no padding to the longest context, no mask, keys and values read once. The new
 * tokens' keys and values are written into their slot first. Softmax is computed online over blocks of keys (Milakov
 * and Gimelshein, arXiv 1805.02867), as in flash attention.
 *
 * A task is one (segment, key head): all its queries (num_tokens x group_size) see the same keys.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 32
#define MAX_ROWS 128
#define MAX_HEAD_DIM 256
#define HIDDEN -1e30f

typedef struct {
    const float *query, *key, *value; /* new tokens: row and head strides below, head_dim contiguous */
    float *keys, *values;             /* one layer of the cache: [slots, num_kv_heads, max_len, head_dim] */
    float *output;                    /* [rows, num_kv_heads * group_size, head_dim] */
    const int64_t *segments;          /* [num_segments, 4]: slot, first position, first row, number of tokens */
    int64_t query_row, query_head, key_row, key_head, value_row, value_head; /* strides in elements */
    int64_t num_segments, num_kv_heads, group_size, max_len, head_dim, window; /* window 0: none */
    float scale;
} Attention;

static inline float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Scores of one query against keys [begin, end), -> weights; updates the running maximum and sum, rescales acc. */
static inline void attend_block(const float *query, const float *keys, const float *values, int64_t num_keys,
                                int64_t first_visible, int64_t last_visible, int64_t head_dim, float scale,
                                float *maximum, float *sum, float *acc) {
    float scores[BLOCK];
    float block_maximum = *maximum;
    for (int64_t j = 0; j < num_keys; j++) {
        float score = dot(query, keys + j * head_dim, head_dim) * scale;
        scores[j] = (j < first_visible || j > last_visible) ? HIDDEN : score;
        block_maximum = fmaxf(block_maximum, scores[j]);
    }
    if (block_maximum <= HIDDEN) return;
    float correction = expf(*maximum - block_maximum), total = 0.0f;
    for (int64_t j = 0; j < num_keys; j++) {
        scores[j] = scores[j] <= HIDDEN ? 0.0f : expf(scores[j] - block_maximum);
        total += scores[j];
    }
    for (int64_t d = 0; d < head_dim; d++) acc[d] *= correction;
    for (int64_t j = 0; j < num_keys; j++)
        for (int64_t d = 0; d < head_dim; d++) acc[d] += scores[j] * values[j * head_dim + d];
    *sum = *sum * correction + total;
    *maximum = block_maximum;
}

/* head_dim is passed apart from a, so that calls with a constant get loops of constant length. */
static inline void attend(const Attention *a, const int64_t *segment, int64_t head, int64_t head_dim) {
    const int64_t slot = segment[0], start = segment[1], row = segment[2], num_tokens = segment[3];
    const int64_t num_rows = num_tokens * a->group_size, end = start + num_tokens;
    float *keys = a->keys + (slot * a->num_kv_heads + head) * a->max_len * head_dim;
    float *values = a->values + (slot * a->num_kv_heads + head) * a->max_len * head_dim;
    float acc[MAX_ROWS][MAX_HEAD_DIM], maximum[MAX_ROWS], sum[MAX_ROWS];

    for (int64_t t = 0; t < num_tokens; t++) {
        memcpy(keys + (start + t) * head_dim, a->key + (row + t) * a->key_row + head * a->key_head,
               head_dim * sizeof(float));
        memcpy(values + (start + t) * head_dim, a->value + (row + t) * a->value_row + head * a->value_head,
               head_dim * sizeof(float));
    }
    for (int64_t r = 0; r < num_rows; r++) {
        maximum[r] = HIDDEN;
        sum[r] = 0.0f;
        memset(acc[r], 0, head_dim * sizeof(float));
    }
    int64_t begin = a->window && start + 1 > a->window ? (start + 1 - a->window) / BLOCK * BLOCK : 0;
    for (; begin < end; begin += BLOCK) {
        const int64_t num_keys = end - begin < BLOCK ? end - begin : BLOCK;
        for (int64_t r = 0; r < num_rows; r++) {
            const int64_t token = r / a->group_size, query_head = head * a->group_size + r % a->group_size;
            const int64_t position = start + token;
            if (position < begin) continue;
            const int64_t oldest = a->window ? position + 1 - a->window : 0;
            attend_block(a->query + (row + token) * a->query_row + query_head * a->query_head, keys + begin * head_dim,
                         values + begin * head_dim, num_keys, oldest - begin, position - begin, head_dim, a->scale,
                         &maximum[r], &sum[r], acc[r]);
        }
    }
    for (int64_t r = 0; r < num_rows; r++) {
        const int64_t token = r / a->group_size, query_head = head * a->group_size + r % a->group_size;
        float *output = a->output + ((row + token) * a->num_kv_heads * a->group_size + query_head) * head_dim;
        for (int64_t d = 0; d < head_dim; d++) output[d] = acc[r][d] / sum[r];
    }
}

/* Every segment must have num_tokens * group_size <= MAX_ROWS, and head_dim <= MAX_HEAD_DIM. */
void ragged_attention(const Attention *a) {
    const int64_t num_tasks = a->num_segments * a->num_kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t task = 0; task < num_tasks; task++) {
        const int64_t *segment = a->segments + task / a->num_kv_heads * 4;
        const int64_t head = task % a->num_kv_heads;
        if (a->head_dim == 64) attend(a, segment, head, 64);
        else if (a->head_dim == 128) attend(a, segment, head, 128);
        else attend(a, segment, head, a->head_dim);
    }
}
