/* What a decoder layer does between its matrix products, of one row, fp32. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "exponential.h"
#include "lanes.h"

/* output [size] = weight * x / sqrt(mean(x^2) + epsilon) */
static inline void norm_row(const float *x, const float *weight, float *output, int64_t size, float epsilon) {
    lanes sums = {0};
    int64_t whole = 0;
    for (; whole + LANES <= size; whole += LANES) {
        const lanes some = *(const lanes *)(x + whole);
        sums = multiply_add(some, some, sums);
    }
    float squares = sum_of(sums);
    for (int64_t i = whole; i < size; i++) squares += x[i] * x[i];
    const float scale = 1.0f / sqrtf(squares / size + epsilon);
    for (int64_t i = 0; i < size; i++) output[i] = x[i] * scale * weight[i];
}

/* output [size] = silu(gate) * up */
static inline void gated_silu_row(const float *gate, const float *up, float *output, int64_t size) {
    for (int64_t i = 0; i < size; i++) output[i] = gate[i] * up[i] / (1.0f + exponential(-gate[i]));
}

/* Rotary position embedding, in place, of one head; cosine, sine [head_dim]. */
static inline void rotate_head(float *head, const float *cosine, const float *sine, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    float *low = head, *high = head + half;
    for (int64_t i = 0; i < half; i++) {
        const float a = low[i], b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[half + i] + a * sine[half + i];
    }
}
