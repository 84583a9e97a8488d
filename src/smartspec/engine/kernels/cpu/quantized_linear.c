/* Linear layers on weights that stay in their blocks, fp32, for processors; see linear.h. */
#include <omp.h>

#include "built_with.h"
#include "linear.h"
#include "weight_row.h"

int64_t panel_width(void) { return PANEL; }

/* The first weight->outputs columns of y [num_rows, y_stride] = x [num_rows, weight->inputs] @ weight.T + bias. */
void linear(const Weight *weight, const float *x, int64_t num_rows, float *y, int64_t y_stride) {
#pragma omp parallel
    {
        int64_t first, last;
        share_of_panels(weight, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        linear_slice(weight, x, num_rows, y, y_stride, first, last);
    }
}

/* out [num_rows, weight->inputs] = rows of the weight in fp32. */
void dequantise_rows(const Weight *weight, const int64_t *rows, int64_t num_rows, float *out) {
#pragma omp parallel for
    for (int64_t i = 0; i < num_rows; i++)
        weight_row(weight, rows[i], out + i * weight->inputs);
}

/* One of GGUF's blocks into its lane of a panel's group. */
static void place_block(const Weight *weight, const uint8_t *block, uint8_t *group, int64_t lane) {
    memcpy(group + 2 * lane, block, 2);
    if (weight->type == TYPE_Q4_1) memcpy(group + 2 * (PANEL + lane), block + 2, 2);
    const int64_t head = weight->type == TYPE_Q4_1 ? 4 : 2;
    uint8_t *quants = group + head * PANEL;
    for (int64_t i = 0; i < GROUP; i++)
        if (weight->type == TYPE_Q8_0)
            quants[i * PANEL + lane] = block[head + i];
        else { /* GGUF has inputs 0 to 15 in the low halves of its bytes, 16 to 31 in the high ones */
            const uint8_t quant = block[head + i % 16] >> i / 16 * 4 & 15;
            quants[(i / WORD_INPUTS * PANEL + lane) * 4 + i % WORD_INPUTS / 2] |= quant << i % 2 * 4;
        }
}

/* to, which is all zeros: the blocks of a weight of type Q4_0, Q4_1 or Q8_0 by panels. */
void to_block_panels(const Weight *weight, uint8_t *to) {
    const int64_t groups = weight->inputs / GROUP, bytes = weight->row_bytes / groups;
#pragma omp parallel for
    for (int64_t panel = 0; panel < (weight->outputs + PANEL - 1) / PANEL; panel++)
        for (int64_t lane = 0; lane < PANEL && panel * PANEL + lane < weight->outputs; lane++)
            for (int64_t g = 0; g < groups; g++)
                place_block(weight, weight->blocks + (panel * PANEL + lane) * weight->row_bytes + g * bytes,
                            to + (panel * groups + g) * PANEL * bytes, lane);
}
