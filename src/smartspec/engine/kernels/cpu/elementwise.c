/* What a decoder layer does between its matrix products, fp32, for processors: one pass over memory each. */
#include "built_with.h"
#include "elementwise.h"

#define PARALLEL_FROM 16384 /* elements: below it waking the other threads takes longer than the work */

/* output [num_rows, size] = weight * x / sqrt(mean(x^2) + epsilon) */
void rms_norm(const float *x, const float *weight, float *output, int64_t num_rows, int64_t size, float epsilon) {
#pragma omp parallel for if (num_rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) norm_row(x + row * size, weight, output + row * size, size, epsilon);
}

/* output [num_rows, size] = activation(gate) * up, of x [num_rows, 2 * size], whose first half is the gate; where not
 * is_gated, activation(x) of x [num_rows, size]. */
void activate(const float *x, float *output, int64_t num_rows, int64_t size, int64_t activation, int64_t is_gated) {
#pragma omp parallel for if (num_rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const float *of_row = x + row * (is_gated ? 2 : 1) * size;
        activate_row(activation, of_row, is_gated ? of_row + size : NULL, output + row * size, size);
    }
}

/* Rotary position embedding, in place, of the first num_turned of the num_heads heads of every row of heads
 * [num_rows, num_heads, head_dim], of each its first `width` numbers; cosine, sine [num_rows, width]. */
void rotate_heads(float *heads, const float *cosine, const float *sine, int64_t num_rows, int64_t num_heads,
                  int64_t num_turned, int64_t head_dim, int64_t width) {
#pragma omp parallel for if (num_rows * num_turned * head_dim >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t head = 0; head < num_turned; head++)
            rotate_head(heads + (row * num_heads + head) * head_dim, cosine + row * width, sine + row * width, width);
}
