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

/* Share of a normal distribution that lies below x: Abramowitz and Stegun, 7.1.26, absolute error below 1e-7. */
static inline float normal_share(float x) {
    const float z = fabsf(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    float p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float tail = 0.5f * p * t * exponential(-z * z);
    return x < 0.0f ? tail : 1.0f - tail;
}

/* Numbers of the activations, as elementwise.py has them. */
enum { SILU, GELU_TANH, GELU, RELU_SQUARED };

/* The activation of x, times factor. */
INLINE float activated(const int activation, float x, float factor) {
    if (activation == SILU) return x * factor / (1.0f + exponential(-x));
    if (activation == GELU_TANH) return x * factor / (1.0f + exponential(x * (-1.59576912f - 0.0713548163f * x * x)));
    if (activation == GELU) return x * factor * normal_share(x);
    const float positive = x > 0.0f ? x : 0.0f;
    return positive * positive * factor;
}

/* output [size] = activation(x) * up, or of x alone where up is NULL. */
static inline void activate_row(int64_t activation, const float *x, const float *up, float *output, int64_t size) {
    switch (activation) {
#define ACTIVATION_CASE(name)                                                                        \
    case name:                                                                                       \
        if (up) for (int64_t i = 0; i < size; i++) output[i] = activated(name, x[i], up[i]);         \
        else for (int64_t i = 0; i < size; i++) output[i] = activated(name, x[i], 1.0f);             \
        return;
        ACTIVATION_CASE(SILU)
        ACTIVATION_CASE(GELU_TANH)
        ACTIVATION_CASE(GELU)
        ACTIVATION_CASE(RELU_SQUARED)
    }
}

/* Rotary position embedding, in place, of the first `width` numbers of a head; cosine, sine [width]. */
static inline void rotate_head(float *head, const float *cosine, const float *sine, int64_t width) {
    const int64_t half = width / 2;
    float *low = head, *high = head + half;
    for (int64_t i = 0; i < half; i++) {
        const float a = low[i], b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[half + i] + a * sine[half + i];
    }
}
