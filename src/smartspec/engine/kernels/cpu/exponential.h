/* e^x as 2^n * 2^f, |f| <= 1/2, with a polynomial for 2^f: relative error below 2e-7, 0 below 2^-126, at most 2^126. Unlike
 * expf it becomes part of the loop around it. */
#pragma once

#include <stdint.h>

static inline float exponential(float x) {
    const float t = x * 1.44269504f, bounded = t < -126.0f ? -126.0f : t > 126.0f ? 126.0f : t;
    const float n = __builtin_rintf(bounded), f = bounded - n;
    float p = 1.54035304e-4f * f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    const union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
    return t < -126.0f ? 0.0f : p * power.value;
}
