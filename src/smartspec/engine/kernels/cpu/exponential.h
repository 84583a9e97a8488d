/* Powers of two and of e: 2^n * 2^f, |f| <= 1/2, with a polynomial for 2^f: relative error below 2e-7. Unlike expf they
 * become part of the loop around them. */
#pragma once

#include <stdint.h>

/* 2^f, |f| <= 1/2 */
static inline float power_of_fraction(float f) {
    float p = 1.54035304e-4f * f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    return p * f + 1.0f;
}

/* 2^n of a whole number up to 126; 0 below -126 */
static inline float power_of_whole(float n) {
    const float bounded = n < -126.0f ? -126.0f : n;
    const union { int32_t bits; float value; } power = {((int32_t)bounded + 127) << 23};
    return n < -126.0f ? 0.0f : power.value;
}

/* e^x: 0 below 2^-126, at most 2^126 */
static inline float exponential(float x) {
    const float t = x * 1.44269504f, bounded = t < -126.0f ? -126.0f : t > 126.0f ? 126.0f : t;
    const float n = __builtin_rintf(bounded), p = power_of_fraction(bounded - n) * power_of_whole(n);
    return t < -126.0f ? 0.0f : p;
}
