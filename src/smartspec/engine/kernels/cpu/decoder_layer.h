/* What a decoder layer does after its first norm, fp32, for processors: query-key-value, rotary positions, attention over
 * the cache, output projection, MLP, and both residual connections, with norms before and after each part where a model
 * has them.
 *
 * One OpenMP team does it all and meets at barriers. Called operator by operator, the same work at one row of a model of
 * 135 million parameters spent half of its time in dispatch and in waking threads.
 */
#pragma once

#include <omp.h>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"

/* Weights whose outputs stand side by side: heads of query, key and value, or gate and up, which may differ in type. */
typedef struct {
    Weight parts[3];
    int64_t num_parts, outputs;
} Linear;

/* A norm is NULL where a layer has none. gate_up: gate and up side by side or, of an MLP without a gate, up alone. */
typedef struct {
    const float *attention_norm, *after_attention_norm, *mlp_norm, *after_mlp_norm; /* [hidden] each */
    const float *query_norm, *key_norm; /* [head_dim] each or, where norms_all_heads, [heads, head_dim] */
    Linear qkv, out, gate_up, down;
    int64_t activation, turned, norms_all_heads; /* turned: numbers of a head that rotary positions turn */
    float epsilon, residual_scale;               /* residual_scale: of what is added to the residual */
} Layer;

/* A layer and what is its own in every pass: its keys and values in the cache, see Attention, and the number of its
 * table of rotary positions. */
typedef struct {
    const Layer *layer;
    float *keys, *values;
    int64_t window, table;
    float scale;
} PlacedLayer;

/* Of one pass; rows are its tokens. attention: its query, key, value and output lie in `heads` and `attended`. */
typedef struct {
    const float *input;         /* [num_rows, hidden] */
    float *output;              /* [num_rows, hidden] */
    const float *cosine, *sine; /* [num_rows, num_tables, rotary_width] */
    float *normed;              /* scratch [num_rows, hidden] */
    float *heads;               /* scratch [num_rows, query, key and value heads, head_dim] */
    float *attended;            /* scratch [num_rows, query heads, head_dim], 0 in rows of no tile */
    float *gate_up;             /* scratch [num_rows, 2 * intermediate] */
    float *gated;               /* scratch [num_rows, intermediate] */
    RoundedBlock *rounded;      /* scratch [num_rows, inputs / 32 of any linear]: its input in 8 bits */
    Attention attention;
    int64_t num_rows, num_tables, rotary_width, table; /* table: the one that the layer reads */
} Pass;

/* Columns of y [num_rows, y_stride] = x @ weight.T + bias: this thread's share of the weight's outputs; and to the same
 * columns of output goes their sum with residual, where there is one. */
static void weight_share(const Weight *weight, const float *x, const RoundedBlock *rounded, int64_t num_rows, float *y,
                         int64_t y_stride, const float *residual, float *output) {
    int64_t first, last;
    share_of_panels(weight, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
    linear_slice(weight, x, rounded, num_rows, y, y_stride, first, last);
    const int64_t end = last * PANEL < weight->outputs ? last * PANEL : weight->outputs;
    if (residual)
        for (int64_t row = 0; row < num_rows; row++)
            for (int64_t i = row * y_stride + first * PANEL; i < row * y_stride + end; i++) output[i] = residual[i] + y[i];
}

static void linear_share(const Linear *linear, const float *x, const RoundedBlock *rounded, int64_t num_rows, float *y,
                         const float *residual, float *output) {
    int64_t column = 0;
    for (int64_t i = 0; i < linear->num_parts; i++) {
        weight_share(&linear->parts[i], x, rounded, num_rows, y + column, linear->outputs, residual, output);
        column += linear->parts[i].outputs;
    }
}

/* Terms of 8 bits in which a linear's weights read its input, the same for all that do so; 0 where none does. */
static int64_t terms_of(const Linear *linear) {
    int64_t terms = 0;
    for (int64_t i = 0; i < linear->num_parts; i++)
        if (reads_blocks(&linear->parts[i])) terms = linear->parts[i].rounds;
    return terms;
}

/* Row `row` of a linear's input, x [inputs], in 8 bits, where that is wanted. */
static void round_for(const Linear *reader, const float *x, int64_t row, const Pass *p) {
    const int64_t terms = terms_of(reader);
    if (terms) round_row(x, reader->parts->inputs, terms, row, p->num_rows, p->rounded);
}

static void round_rows_for(const Linear *reader, const float *x, const Pass *p) {
    if (!terms_of(reader)) return;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->num_rows; row++) round_for(reader, x + row * reader->parts->inputs, row, p);
}

/* reader: the linear that reads them. */
static void norm_rows(const float *x, const float *weight, float epsilon, const Linear *reader, const Pass *p, int64_t size) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->num_rows; row++) {
        norm_row(x + row * size, weight, p->normed + row * size, size, epsilon);
        round_for(reader, p->normed + row * size, row, p);
    }
}

/* What a part reads of x [num_rows, hidden]: its norm where there is one; in 8 bits, too, where its linear wants that. */
static const float *read_rows(const Layer *layer, const float *norm, const float *x, const Linear *reader, const Pass *p) {
    if (norm) norm_rows(x, norm, layer->epsilon, reader, p, layer->out.outputs);
    else round_rows_for(reader, x, p);
    return norm ? p->normed : x;
}

/* Norms of all queries and of all keys of a row, which have a mean each. */
static void norm_all_heads(const Layer *layer, const Pass *p) {
    const int64_t key_size = p->attention.num_kv_heads * p->attention.head_dim, query_size = key_size * p->attention.group_size;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->num_rows; row++) {
        float *query = p->heads + row * (query_size + 2 * key_size), *key = query + query_size;
        norm_row(query, layer->query_norm, query, query_size, layer->epsilon);
        norm_row(key, layer->key_norm, key, key_size, layer->epsilon);
    }
}

/* Norms of query and key where the model has them, then rotary positions. */
static void turn_heads(const Layer *layer, const Pass *p) {
    const int64_t head_dim = p->attention.head_dim, num_kv_heads = p->attention.num_kv_heads;
    const int64_t num_query_heads = num_kv_heads * p->attention.group_size, num_turned = num_query_heads + num_kv_heads;
    if (layer->norms_all_heads) norm_all_heads(layer, p);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < p->num_rows * num_turned; task++) {
        const int64_t row = task / num_turned, index = task % num_turned;
        const int64_t factors = (row * p->num_tables + p->table) * p->rotary_width;
        float *head = p->heads + (row * (num_turned + num_kv_heads) + index) * head_dim;
        const float *norm = index < num_query_heads ? layer->query_norm : layer->key_norm;
        if (norm && !layer->norms_all_heads) norm_row(head, norm, head, head_dim, layer->epsilon);
        rotate_head(head, p->cosine + factors, p->sine + factors, layer->turned);
    }
}

static void activate_rows(const Layer *layer, const Pass *p) {
    const int64_t size = layer->down.parts[0].inputs, width = layer->gate_up.outputs;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->num_rows; row++) {
        const float *x = p->gate_up + row * width;
        activate_row(layer->activation, x, width > size ? x + size : NULL, p->gated + row * size, size);
        round_for(&layer->down, p->gated + row * size, row, p);
    }
}

/* Whether what a part has computed is added to the residual as it is. */
static inline int adds_plainly(const Layer *layer, const float *norm) { return !norm && layer->residual_scale == 1.0f; }

/* p->output = residual + residual_scale * norm(p->normed), which a part has computed; norm NULL: as it is. Ends without a
 * barrier. */
static void add_rows(const Layer *layer, const float *norm, const float *residual, const Pass *p) {
    const int64_t size = layer->out.outputs;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < p->num_rows; row++) {
        float *x = p->normed + row * size, *output = p->output + row * size;
        if (norm) norm_row(x, norm, x, size, layer->epsilon);
        for (int64_t i = 0; i < size; i++) output[i] = residual[row * size + i] + layer->residual_scale * x[i];
    }
}

/* In a team, all of whose threads call it: what the layer makes of x [num_rows, inputs of qkv], which is normed and, where
 * qkv wants that, in p->rounded, and of residual [num_rows, hidden] into p->output. x may be p->normed. Ends without a
 * barrier. */
static void layer_after_norm(const Layer *layer, const Pass *p, const float *x, const float *residual) {
    const int64_t num_rows = p->num_rows;
    linear_share(&layer->qkv, x, p->rounded, num_rows, p->heads, NULL, NULL);
#pragma omp barrier
    turn_heads(layer, p);
    attend_in_team(&p->attention);
    round_rows_for(&layer->out, p->attended, p);
    const int is_plain = adds_plainly(layer, layer->after_attention_norm);
    linear_share(&layer->out, p->attended, p->rounded, num_rows, p->normed, is_plain ? residual : NULL, p->output);
#pragma omp barrier
    if (!is_plain) {
        add_rows(layer, layer->after_attention_norm, residual, p);
#pragma omp barrier
    }
    const float *mlp_input = read_rows(layer, layer->mlp_norm, p->output, &layer->gate_up, p);
    linear_share(&layer->gate_up, mlp_input, p->rounded, num_rows, p->gate_up, NULL, NULL);
#pragma omp barrier
    activate_rows(layer, p);
    const int is_last_plain = adds_plainly(layer, layer->after_mlp_norm);
    linear_share(&layer->down, p->gated, p->rounded, num_rows, p->normed, is_last_plain ? p->output : NULL, p->output);
    if (!is_last_plain) {
#pragma omp barrier
        add_rows(layer, layer->after_mlp_norm, p->output, p);
    }
}
