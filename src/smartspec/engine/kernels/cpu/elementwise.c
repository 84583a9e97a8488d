/* What a decoder layer does between its matrix products, fp32, for processors: one pass over memory each. */
#include <math.h>
#include <stdint.h>

#include "built_with.h"
#include "exponential.h"

#define PARALLEL_FROM 16384 /* elements: below it waking the other threads takes longer than the work */

/* output [num_rows, size] = weight * x / sqrt(mean(x^2) + epsilon) */
void rms_norm(const float *x, const float *weight, float *output, int64_t num_rows, int64_t size, float epsilon) {
#pragma omp parallel for if (num_rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const float *in = x + row * size;
        float *out = output + row * size, squares = 0.0f;
        for (int64_t i = 0; i < size; i++) squares += in[i] * in[i];
        const float scale = 1.0f / sqrtf(squares / size + epsilon);
        for (int64_t i = 0; i < size; i++) out[i] = in[i] * scale * weight[i];
    }
}

/* output [num_rows, size] = silu(gate) * up, of gate_up [num_rows, 2 * size] */
void gated_silu(const float *gate_up, float *output, int64_t num_rows, int64_t size) {
#pragma omp parallel for if (num_rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const float *gate = gate_up + row * 2 * size, *up = gate + size;
        float *out = output + row * size;
        for (int64_t i = 0; i < size; i++) out[i] = gate[i] * up[i] / (1.0f + exponential(-gate[i]));
    }
}

/* Rotary position embedding, in place, of the first num_turned of the num_heads heads of every row of heads
 * [num_rows, num_heads, head_dim]; cosine, sine [num_rows, head_dim]. */
void rotate_heads(float *heads, const float *cosine, const float *sine, int64_t num_rows, int64_t num_heads,
                  int64_t num_turned, int64_t head_dim) {
    const int64_t half = head_dim / 2;
#pragma omp parallel for if (num_rows * num_turned * head_dim >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const float *c = cosine + row * head_dim, *s = sine + row * head_dim;
        for (int64_t head = 0; head < num_turned; head++) {
            float *low = heads + (row * num_heads + head) * head_dim, *high = low + half;
            for (int64_t i = 0; i < half; i++) {
                const float a = low[i], b = high[i];
                low[i] = a * c[i] - b * s[i];
                high[i] = b * c[half + i] + a * s[half + i];
            }
        }
    }
}
