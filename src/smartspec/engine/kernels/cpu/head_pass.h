/* A pass of a trained head (EAGLE-3's) in one call, fp32, for processors: what its rows read, its decoder layer, its norm
 * and output embedding, and of every wanted row the likeliest tokens with their probabilities.
 *
 * A head is so small that by operators most of its time went into calling them.
 */
#pragma once

#include <float.h>

#include "decoder_layer.h"
#include "weight_row.h"

#define RANKED 512 /* logits at a time: their exponentials stay in the first cache */

/* layer.attention_norm: of the hidden state, beside which the layer reads the embedding. Norms that a head lacks are NULL.
 * tap_norms: [num_taps, size of a tap], side by side. */
typedef struct {
    Layer layer;
    const float *embed_norm, *final_norm, *all_taps_norm, *tap_norms;
    Weight embedding, combine, lm_head;
    const int64_t *target_ids; /* [outputs of lm_head]: the target's ids of draft tokens */
    int64_t num_taps, norm_before_residual, norm_output;
} Head;

/* of_layer: input and output [num_rows, hidden], cosine and sine are memory to be written. Rows read features or, where
 * those are NULL, rows of the hidden states of the pass before. Wanted rows are those whose predictions are needed. */
typedef struct {
    Pass of_layer;
    const float *features;            /* [slots, max_len, inputs of combine] or NULL */
    const int64_t *earlier_rows;      /* [num_rows], of `hidden` as the pass before has left it */
    const int32_t *token_ids;         /* [num_rows] */
    const float *cosine_of, *sine_of; /* [max_len, head_dim] */
    const int64_t *wanted_rows;       /* [num_wanted] */
    float *embedded;                  /* scratch [num_rows, hidden] */
    float *taps;                      /* scratch [num_rows, inputs of combine] */
    float *joined;                    /* scratch [num_rows, 2 * hidden] */
    float *hidden;                    /* [num_wanted, hidden] for the next pass */
    float *normed;                    /* scratch [num_wanted, hidden] */
    float *logits;                    /* scratch [num_wanted, draft tokens] */
    int64_t *children;                /* [num_wanted, width] */
    float *chances, *entropy;         /* [num_wanted, width]; [num_wanted] in nats */
    int64_t num_wanted, width;
} HeadPass;

/* features [inputs of combine] of a position, normed as the head wants them. */
static void norm_taps(const Head *head, const float *features, float *to) {
    const int64_t size = head->combine.inputs, tap_size = size / head->num_taps;
    const float epsilon = head->layer.epsilon;
    if (head->all_taps_norm) norm_row(features, head->all_taps_norm, to, size, epsilon);
    else memcpy(to, features, size * sizeof(float));
    if (head->tap_norms)
        for (int64_t i = 0; i < size; i += tap_size) norm_row(to + i, head->tap_norms + i, to + i, tap_size, epsilon);
}

/* Row `row` of num_rows of a weight's input, x [inputs], in 8 bits, where it reads that. */
static void round_for_weight(const Weight *reader, const float *x, int64_t row, int64_t num_rows, const HeadPass *p) {
    if (reads_blocks(reader)) round_row(x, reader->inputs, reader->rounds, row, num_rows, p->of_layer.rounded);
}

/* What a row of the pass reads: token t of a tile. */
static void gather_row(const Head *head, const HeadPass *p, const int64_t *tile, int64_t t) {
    const Attention *a = &p->of_layer.attention;
    const int64_t row = tile[2] + t, place = tile[1] + t, hidden = head->embedding.inputs, head_dim = a->head_dim;
    const int64_t position = tile[4] < 0 ? place : tree_position(a, row, tile[4]);
    memcpy((float *)p->of_layer.cosine + row * head_dim, p->cosine_of + position * head_dim, head_dim * sizeof(float));
    memcpy((float *)p->of_layer.sine + row * head_dim, p->sine_of + position * head_dim, head_dim * sizeof(float));
    weight_row(&head->embedding, p->token_ids[row], p->embedded + row * hidden);
    norm_row(p->embedded + row * hidden, head->embed_norm, p->joined + row * 2 * hidden, hidden, head->layer.epsilon);
    if (p->features) {
        const int64_t size = head->combine.inputs;
        norm_taps(head, p->features + (tile[0] * a->max_len + place) * size, p->taps + row * size);
        round_for_weight(&head->combine, p->taps + row * size, row, p->of_layer.num_rows, p);
    } else {
        const float *earlier = p->hidden + p->earlier_rows[row] * hidden;
        memcpy((float *)p->of_layer.input + row * hidden, earlier, hidden * sizeof(float));
    }
}

static void join_rows(const Head *head, const HeadPass *p) {
    const int64_t hidden = head->embedding.inputs;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p->of_layer.num_rows; row++) {
        float *input = (float *)p->of_layer.input + row * hidden, *to = p->joined + (2 * row + 1) * hidden;
        norm_row(input, head->layer.attention_norm, to, hidden, head->layer.epsilon);
        if (head->norm_before_residual) memcpy(input, to, hidden * sizeof(float));
        round_for(&head->layer.qkv, to - hidden, row, &p->of_layer);
    }
}

static void finish_rows(const Head *head, const HeadPass *p) {
    const int64_t hidden = head->embedding.inputs;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->num_wanted; i++) {
        const float *output = p->of_layer.output + p->wanted_rows[i] * hidden;
        float *normed = p->normed + i * hidden;
        norm_row(output, head->final_norm, normed, hidden, head->layer.epsilon);
        memcpy(p->hidden + i * hidden, head->norm_output ? normed : output, hidden * sizeof(float));
        round_for_weight(&head->lm_head, normed, i, p->num_wanted, p);
    }
}

/* Of a row of logits: entropy, and the width likeliest tokens with their probabilities, the likeliest first. */
static void rank_row(const Head *head, const HeadPass *p, int64_t row) {
    const int64_t size = head->lm_head.outputs, width = p->width;
    const float *logits = p->logits + row * size;
    int64_t *ids = p->children + row * width;
    float *best = p->chances + row * width, total = 0.0f, weighted = 0.0f, least = -FLT_MAX;
    for (int64_t i = 0; i < width; i++) best[i] = -FLT_MAX, ids[i] = 0;
    for (int64_t i = 0; i < size; i++) {
        if (!(logits[i] > least)) continue;
        int64_t place = width - 1;
        for (; place > 0 && best[place - 1] < logits[i]; place--) {
            best[place] = best[place - 1];
            ids[place] = ids[place - 1];
        }
        best[place] = logits[i];
        ids[place] = i;
        least = best[width - 1];
    }
    const float maximum = best[0];
    lanes totals = {0}, products = {0};
    float chances[RANKED] ALIGNED;
    for (int64_t first = 0; first < size; first += RANKED) {
        const int64_t count = size - first < RANKED ? size - first : RANKED;
        int64_t i = 0;
        for (int64_t j = 0; j < count; j++) chances[j] = exponential(logits[first + j] - maximum);
        for (; i + LANES <= count; i += LANES) {
            const lanes chance = *(const lanes *)(chances + i);
            totals += chance;
            products += chance * (*(const lanes *)(logits + first + i) - maximum);
        }
        for (; i < count; i++) {
            total += chances[i];
            weighted += chances[i] * (logits[first + i] - maximum);
        }
    }
    total += sum_of(totals);
    weighted += sum_of(products);
    p->entropy[row] = logf(total) - weighted / total;
    for (int64_t i = 0; i < width; i++) {
        best[i] = exponential(best[i] - maximum) / total;
        ids[i] = head->target_ids[ids[i]];
    }
}

/* The whole pass, in a team, all of whose threads call it. */
static void head_in_team(const Head *head, const HeadPass *p) {
    const Pass *layer_pass = &p->of_layer;
    const Attention *a = &layer_pass->attention;
    const int64_t hidden = head->embedding.inputs, num_rows = layer_pass->num_rows;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < a->num_tiles; i++)
        for (int64_t t = 0; t < a->tiles[i * TILE_FIELDS + 3]; t++) gather_row(head, p, a->tiles + i * TILE_FIELDS, t);
    if (p->features) {
        weight_share(&head->combine, p->taps, layer_pass->rounded, num_rows, (float *)layer_pass->input, hidden, NULL, NULL);
#pragma omp barrier
    }
    join_rows(head, p);
    layer_after_norm(&head->layer, layer_pass, p->joined, layer_pass->input);
    if (p->num_wanted) {
#pragma omp barrier
        finish_rows(head, p);
        weight_share(&head->lm_head, p->normed, layer_pass->rounded, p->num_wanted, p->logits, head->lm_head.outputs, NULL,
                     NULL);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t row = 0; row < p->num_wanted; row++) rank_row(head, p, row);
    }
}
