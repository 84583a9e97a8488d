/* What a decoder layer of Llama's shape does after its first norm, fp32, for processors: query-key-value, rotary
 * positions, attention over the cache, output projection, norm, gated MLP, and both residual connections.
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

typedef struct {
    const float *attention_norm, *mlp_norm; /* [hidden] */
    const float *query_norm, *key_norm;     /* [head_dim] each, or NULL */
    Linear qkv, out, gate_up, down;
    float epsilon;
} Layer;

/* A layer and what is its own in every pass: its keys and values in the cache, see Attention. */
typedef struct {
    const Layer *layer;
    float *keys, *values;
    int64_t window;
    float scale;
} PlacedLayer;

/* Of one pass; rows are its tokens. attention: its query, key, value and output lie in `heads` and `attended`. */
typedef struct {
    const float *input;         /* [num_rows, hidden] */
    float *output;              /* [num_rows, hidden] */
    const float *cosine, *sine; /* [num_rows, head_dim] */
    float *normed;              /* scratch [num_rows, hidden] */
    float *heads;               /* scratch [num_rows, query, key and value heads, head_dim] */
    float *attended;            /* scratch [num_rows, query heads, head_dim], 0 in rows of no tile */
    float *gate_up;             /* scratch [num_rows, 2 * intermediate] */
    float *gated;               /* scratch [num_rows, intermediate] */
    RoundedBlock *rounded;      /* scratch [num_rows, inputs / 32 of any linear]: its input in 8 bits */
    Attention attention;
    int64_t num_rows;
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

/* Whether any of a linear's weights reads its input in 8 bits. */
static int wants_blocks(const Linear *linear) {
    int found = 0;
    for (int64_t i = 0; i < linear->num_parts; i++) found |= reads_blocks(&linear->parts[i]);
    return found;
}

/* Row `row` of a linear's input, x [inputs], in 8 bits, where that is wanted. */
static void round_for(const Linear *reader, const float *x, int64_t row, const Pass *p) {
    if (wants_blocks(reader)) round_row(x, reader->parts->inputs, row, p->num_rows, p->rounded);
}

static void round_rows_for(const Linear *reader, const float *x, const Pass *p) {
    if (!wants_blocks(reader)) return;
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

/* Norms of query and key where the model has them, then rotary positions. */
static void turn_heads(const Layer *layer, const Pass *p) {
    const int64_t head_dim = p->attention.head_dim, num_kv_heads = p->attention.num_kv_heads;
    const int64_t num_query_heads = num_kv_heads * p->attention.group_size, num_turned = num_query_heads + num_kv_heads;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < p->num_rows * num_turned; task++) {
        const int64_t row = task / num_turned, index = task % num_turned;
        float *head = p->heads + (row * (num_turned + num_kv_heads) + index) * head_dim;
        const float *norm = index < num_query_heads ? layer->query_norm : layer->key_norm;
        if (norm) norm_row(head, norm, head, head_dim, layer->epsilon);
        rotate_head(head, p->cosine + row * head_dim, p->sine + row * head_dim, head_dim);
    }
}

static void gate_rows(const Linear *reader, const Pass *p, int64_t size) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->num_rows; row++) {
        const float *gate = p->gate_up + row * 2 * size;
        gated_silu_row(gate, gate + size, p->gated + row * size, size);
        round_for(reader, p->gated + row * size, row, p);
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
    linear_share(&layer->out, p->attended, p->rounded, num_rows, p->normed, residual, p->output);
#pragma omp barrier
    norm_rows(p->output, layer->mlp_norm, layer->epsilon, &layer->gate_up, p, layer->out.outputs);
    linear_share(&layer->gate_up, p->normed, p->rounded, num_rows, p->gate_up, NULL, NULL);
#pragma omp barrier
    gate_rows(&layer->down, p, layer->gate_up.outputs / 2);
    linear_share(&layer->down, p->gated, p->rounded, num_rows, p->normed, p->output, p->output);
}
