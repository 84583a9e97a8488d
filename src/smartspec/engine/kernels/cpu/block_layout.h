/* Blocks as GGUF has them, laid out by panels: see block_panels.h. */
#pragma once

#include "block_panels.h"

/* Quants of group g of a block, below 64 or, of Q8_0, bytes as they are. */
static void read_quants(int64_t type, const uint8_t *block, int64_t g, uint8_t *quants) {
    const int64_t shift = g % 2 * 4;
    const uint8_t *fifth = block + (type == TYPE_Q5_1 ? 4 : 2), *low = block + g / 2 * 32, *low_q6 = block + g / 4 * 64 + g % 2 * 32;
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t half = i / 16 * 4, bit = (fifth[i / 8] >> i % 8 & 1) << 4;
        switch (type) {
        case TYPE_Q4_0: quants[i] = block[2 + i % 16] >> half & 15; break;
        case TYPE_Q4_1: quants[i] = block[4 + i % 16] >> half & 15; break;
        case TYPE_Q5_0: quants[i] = (block[6 + i % 16] >> half & 15) | bit; break;
        case TYPE_Q5_1: quants[i] = (block[8 + i % 16] >> half & 15) | bit; break;
        case TYPE_Q8_0: quants[i] = block[2 + i]; break;
        case TYPE_Q4_K: quants[i] = low[16 + i] >> shift & 15; break;
        case TYPE_Q5_K: quants[i] = (low[48 + i] >> shift & 15) | (block[16 + i] >> g & 1) << 4; break;
        case TYPE_Q6_K:
            quants[i] = (low_q6[i] >> g % 4 / 2 * 4 & 15) | (block[128 + g / 4 * 32 + i] >> g % 4 * 2 & 3) << 4;
        }
    }
}

/* Scales and minima of group g of a block, and what stands before the first group, into a lane of a panel's group. */
static void place_scales(int64_t type, const uint8_t *block, int64_t g, uint8_t *group, int64_t lane) {
    uint8_t *second = group + PANEL;
    switch (type) {
    case TYPE_Q4_1: case TYPE_Q5_1: memcpy(group + 2 * (PANEL + lane), block + 2, 2); /* fall through */
    case TYPE_Q4_0: case TYPE_Q5_0: case TYPE_Q8_0: memcpy(group + 2 * lane, block, 2); break;
    case TYPE_Q4_K: case TYPE_Q5_K:
        if (g == 0) memcpy(group - 4 * PANEL + 2 * lane, block, 2);
        if (g == 0) memcpy(group - 2 * PANEL + 2 * lane, block + 2, 2);
        scale_codes(block, g, &group[lane], &second[lane]);
        break;
    case TYPE_Q6_K:
        if (g == 0) memcpy(group - 2 * PANEL + 2 * lane, block + 208, 2);
        group[lane] = block[192 + 2 * g];
        second[lane] = block[192 + 2 * g + 1];
    }
}

/* Group g of one of GGUF's blocks, or 32 plain numbers, into its lane of a panel's group, which is all zeros. */
static void place_group(int64_t type, int64_t panel_type, const uint8_t *block, int64_t g, uint8_t *group, int64_t lane) {
    if (is_plain(panel_type)) {
        for (int64_t i = 0; i < GROUP; i++) {
            const int64_t place = type == TYPE_F16 ? i * PANEL + lane : (i / 2 * PANEL + lane) * 2 + i % 2;
            memcpy(group + 2 * place, block + 2 * i, 2);
        }
        return;
    }
    uint8_t numbers[GROUP], *high = group + scale_bytes(panel_type) * PANEL;
    uint8_t *quants = high + 4 * high_bits(panel_type) * PANEL;
    place_scales(type, block, g, group, lane);
    read_quants(type, block, g, numbers);
    const int64_t bits = high_bits(panel_type);
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t part = i / PART_INPUTS, byte = i % PART_INPUTS / 2, word = 2 * part + i % 2;
        if (type == TYPE_Q8_0) quants[(word * PANEL + lane) * 4 + byte] = numbers[i];
        else quants[(part * PANEL + lane) * 4 + byte] |= (numbers[i] & 15) << i % 2 * 4;
        if (bits) high[(bits * word / 8 * PANEL + lane) * 4 + byte] |= numbers[i] >> 4 << bits * word % 8;
    }
}
