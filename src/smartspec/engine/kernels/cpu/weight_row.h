/* One output's weights in fp32, as an embedding looks them up. */
#pragma once

#include "linear.h"

/* out [inputs], of blocks in panels. */
static void block_panel_row(const Weight *weight, int64_t output, float *out) {
    float unpacked[PANEL_INPUTS * PANEL] ALIGNED;
    for (int64_t k = 0; k < weight->inputs; k += PANEL_INPUTS) {
        const int64_t count = weight->inputs - k < PANEL_INPUTS ? weight->inputs - k : PANEL_INPUTS;
        unpack_panel(weight, output / PANEL, k, count, unpacked);
        for (int64_t i = 0; i < count; i++) out[k + i] = unpacked[i * PANEL + output % PANEL];
    }
}

/* out [inputs], however the weight lies, but for panels of fp32. */
static void weight_row(const Weight *weight, int64_t output, float *out) {
    if (weight->type < TYPE_PANELS) block_panel_row(weight, output, out);
    else dequantise_row(weight, output, 0, weight->inputs, out);
}
