/* Linear layers on weights that stay in their blocks, fp32, for processors; see linear.h. */
#include <omp.h>

#include "built_with.h"
#include "linear.h"

/* y [num_rows, y_stride], of which the first weight->outputs columns are written: x @ weight.T + bias. */
void linear(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride) {
#pragma omp parallel
    {
        int64_t first, last;
        share_of_outputs(weight, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        linear_slice(weight, x, num_rows, y, y_stride, first, last);
    }
}

/* out [num_rows, inputs] = the dequantised rows of the weight that are named. */
void dequantise_rows(const Weight *weight, const int64_t *rows, int64_t num_rows, float *out) {
#pragma omp parallel for
    for (int64_t i = 0; i < num_rows; i++)
        dequantise_row(weight, rows[i], 0, weight->inputs, out + i * weight->inputs);
}
