/* Linear layers on fp32 weights in panels, for processors; see panels.h. */
#include <omp.h>

#include "built_with.h"
#include "panels.h"

int64_t panel_width(void) { return PANEL; }

/* y [num_rows, outputs] = x [num_rows, inputs] @ weight.T + bias */
void panel_linear(const Weight *weight, const float *x, float *y, int64_t num_rows) {
    const int64_t num_panels = (weight->outputs + PANEL - 1) / PANEL;
#pragma omp parallel
    {
        const int64_t thread = omp_get_thread_num(), num_threads = omp_get_num_threads();
        panels_slice(weight, x, num_rows, y, weight->outputs, num_panels * thread / num_threads,
                     num_panels * (thread + 1) / num_threads);
    }
}
