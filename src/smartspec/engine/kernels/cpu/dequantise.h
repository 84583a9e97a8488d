/* Weights in blocks back to fp32, one function per type of block.
 *
 * A scale has 11 significant bits and a quant at most 8, so every product is exact in fp32 and contraction into
 * fused multiply-adds changes nothing: results are those of `gguf.quants.dequantize`, bit for bit.
 */
#pragma once

#include <string.h>

#include "weight.h"

static inline float half(const uint8_t *bytes) {
    uint16_t bits;
    memcpy(&bits, bytes, 2);
#ifdef __FLT16_MANT_DIG__
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
#else /* shifted into place, a half is a float whose exponent is 112 too small; infinities and NaN are put right */
    uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13;
    if (shifted >= 0x7c00u << 13) shifted += 0x70000000u;
    float value;
    memcpy(&value, &shifted, 4);
    if (shifted < 0x7c00u << 13) value *= 0x1p112f;
    return bits & 0x8000 ? -value : value;
#endif
}

/* Q4_1: scale, minimum, 16 bytes: low halves are weights 0 to 15, high halves 16 to 31. */
static void dequantise_q4_1(const uint8_t *block, float *out, int64_t num_blocks) {
    for (int64_t b = 0; b < num_blocks; b++, block += 20, out += 32) {
        const float scale = half(block), minimum = half(block + 2);
        for (int i = 0; i < 16; i++) out[i] = scale * (block[4 + i] & 15) + minimum;
        for (int i = 0; i < 16; i++) out[16 + i] = scale * (block[4 + i] >> 4) + minimum;
    }
}

/* out [num_inputs]: weights first_input .. of one row; first_input and num_inputs are multiples of the block. */
static void dequantise_row(const Weight *weight, int64_t row, int64_t first_input, int64_t num_inputs, float *out) {
    const uint8_t *bytes = weight->blocks + row * weight->row_bytes;
    switch (weight->type) {
    case TYPE_F32: memcpy(out, bytes + first_input * 4, num_inputs * 4); break;
    case TYPE_Q4_1: dequantise_q4_1(bytes + first_input / 32 * 20, out, num_inputs / 32); break;
    }
}
