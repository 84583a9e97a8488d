/* Linear layers on weights that stay in their blocks, fp32, for processors; see linear.h. */
#include <omp.h>

#include "built_with.h"
#include "linear.h"

/* The first weight->outputs columns of y [num_rows, y_stride] = x [num_rows, weight->inputs] @ weight.T + bias. */
void linear(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride) {
#pragma omp parallel
    {
        int64_t first, last;
        share_of_outputs(weight, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        linear_slice(weight, x, num_rows, y, y_stride, first, last);
    }
}

/* out [weight->outputs, weight->inputs] = the weight in fp32. */
void dequantise_all(const Weight *weight, float *out) {
#pragma omp parallel for
    for (int64_t row = 0; row < weight->outputs; row++)
        dequantise_row(weight, row, 0, weight->inputs, out + row * weight->inputs);
}
