/* One output's weights in fp32, as an embedding looks them up. */
#pragma once

#include "block_panels.h"

/* out [inputs], of blocks in panels. */
static void block_panel_row(const Weight *weight, int64_t output, float *out) {
    const int64_t lane = output % PANEL, groups = weight->inputs / GROUP;
    const uint8_t *from = weight->blocks + output / PANEL * groups * weight->row_bytes;
    for (int64_t g = 0; g < groups; g++, from += weight->row_bytes, out += GROUP) {
        const float scale = half(from + 2 * lane);
        const int is_q8 = weight->type == TYPE_PANELS_Q8_0, has_minimum = weight->type == TYPE_PANELS_Q4_1;
        const float offset = is_q8 ? 0.0f : has_minimum ? half(from + 2 * (PANEL + lane)) : -8.0f * scale;
        const uint8_t *quants = from + (has_minimum ? 4 : 2) * PANEL;
        for (int64_t i = 0; i < GROUP; i++) {
            const uint8_t byte = quants[is_q8 ? i * PANEL + lane : (i / WORD_INPUTS * PANEL + lane) * 4 + i % WORD_INPUTS / 2];
            out[i] = scale * (is_q8 ? (float)(int8_t)byte : (float)(byte >> i % 2 * 4 & 15)) + offset;
        }
    }
}

/* out [inputs], however the weight lies, but for panels of fp32. */
static void weight_row(const Weight *weight, int64_t output, float *out) {
    if (weight->type < TYPE_PANELS) block_panel_row(weight, output, out);
    else dequantise_row(weight, output, 0, weight->inputs, out);
}
