/* Weights in blocks back to fp32, in groups of 32, one function per type of block (layouts: ggml-common.h of ggml).
 *
 * A scale has 11 significant bits, a scale of a scale 7 and a quant 8 at most, no three of them together more than 24:
 * every product is exact in fp32, and contraction into fused multiply-adds changes nothing. Results are those of
 * `gguf.quants.dequantize`, exactly.
 */
#pragma once

#include <string.h>

#include "lanes.h"
#include "weight.h"

#define GROUP 32
#define GROUP_VECTORS (GROUP / LANES)
#define HALF_GROUP (GROUP_VECTORS / 2)

INLINE float half(const uint8_t *from) {
    uint16_t bits;
    memcpy(&bits, from, 2);
#ifdef __F16C__
    return _cvtsh_ss(bits);
#else /* as widen_halves */
    uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13;
    const int is_finite = shifted < 0x7c00u << 13;
    if (!is_finite) shifted += 0x70000000u;
    float value;
    memcpy(&value, &shifted, 4);
    if (is_finite) value *= 0x1p112f;
    return bits & 0x8000 ? -value : value;
#endif
}

/* The low or high halves of 16 bytes at `quants`, times scale plus offset, and the other halves after them. */
INLINE void halves(const uint8_t *quants, float scale, float offset, lanes *out) {
    for (int v = 0; v < HALF_GROUP; v++) {
        const ints q = widen(quants + v * LANES);
        out[v] = scale * as_floats(q & 15) + offset;
        out[HALF_GROUP + v] = scale * as_floats(q >> 4) + offset;
    }
}

/* Q4_0: scale, 16 bytes whose low halves are weights 0 to 15 and whose high halves are 16 to 31, less 8. */
INLINE void group_q4_0(const uint8_t *block, lanes *out) {
    const float scale = half(block);
    halves(block + 2, scale, -8.0f * scale, out);
}

/* Q4_1: scale, minimum, 16 bytes as in Q4_0. */
INLINE void group_q4_1(const uint8_t *block, lanes *out) { halves(block + 4, half(block), half(block + 2), out); }

/* As `halves`, with a fifth bit of every quant in the 32 bits at `fifth`. */
INLINE void halves_and_fifth(const uint8_t *quants, const uint8_t *fifth, float scale, float offset, lanes *out) {
    uint32_t bits;
    memcpy(&bits, fifth, 4);
    ints places;
    for (int i = 0; i < LANES; i++) places[i] = i;
    for (int v = 0; v < HALF_GROUP; v++) {
        const ints q = widen(quants + v * LANES);
        const ints low = (ints){0} + (int32_t)(bits >> (v * LANES)), high = (ints){0} + (int32_t)(bits >> (16 + v * LANES));
        out[v] = scale * as_floats((q & 15) | (low >> places & 1) << 4) + offset;
        out[HALF_GROUP + v] = scale * as_floats((q >> 4) | (high >> places & 1) << 4) + offset;
    }
}

/* Q5_0: scale, 32 fifth bits, 16 bytes, less 16. Q5_1: scale, minimum, 32 fifth bits, 16 bytes. */
INLINE void group_q5_0(const uint8_t *block, lanes *out) {
    const float scale = half(block);
    halves_and_fifth(block + 6, block + 2, scale, -16.0f * scale, out);
}

INLINE void group_q5_1(const uint8_t *block, lanes *out) {
    halves_and_fifth(block + 8, block + 4, half(block), half(block + 2), out);
}

/* Q8_0: scale, 32 signed bytes. */
INLINE void group_q8_0(const uint8_t *block, lanes *out) {
    const float scale = half(block);
    for (int v = 0; v < GROUP_VECTORS; v++) out[v] = scale * as_floats(widen_signed(block + 2 + v * LANES));
}

/* Scale and minimum, 6 bits each, of group g out of the 12 bytes of a Q4_K or Q5_K block. */
INLINE void scale_codes(const uint8_t *block, int64_t g, uint8_t *scale, uint8_t *minimum) {
    const uint8_t *s = block + 4;
    *scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    *minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
}

INLINE void scale_and_minimum(const uint8_t *block, int64_t g, float *scale, float *offset) {
    uint8_t first, second;
    scale_codes(block, g, &first, &second);
    *scale = half(block) * first;
    *offset = -half(block + 2) * second;
}

/* Q4_K, 8 groups: scale, minimum, 12 bytes of scales, 128 bytes: 32 hold two groups, low and high halves. */
INLINE void group_q4_k(const uint8_t *block, int64_t g, lanes *out) {
    float scale, offset;
    scale_and_minimum(block, g, &scale, &offset);
    const uint8_t *quants = block + 16 + g / 2 * 32;
    for (int v = 0; v < GROUP_VECTORS; v++)
        out[v] = scale * as_floats(widen(quants + v * LANES) >> (g % 2 * 4) & 15) + offset;
}

/* Q5_K: as Q4_K, with 32 bytes of fifth bits, bit g for group g, before the quants. */
INLINE void group_q5_k(const uint8_t *block, int64_t g, lanes *out) {
    float scale, offset;
    scale_and_minimum(block, g, &scale, &offset);
    const uint8_t *fifth = block + 16, *quants = block + 48 + g / 2 * 32;
    for (int v = 0; v < GROUP_VECTORS; v++) {
        const ints low = widen(quants + v * LANES) >> (g % 2 * 4) & 15;
        out[v] = scale * as_floats(low | (widen(fifth + v * LANES) >> g & 1) << 4) + offset;
    }
}

/* Q6_K, 2 halves of 4 groups: 128 bytes of low 4 bits, 64 of high 2 bits, 16 signed scales of 16 weights, scale. */
INLINE void group_q6_k(const uint8_t *block, int64_t g, lanes *out) {
    const uint8_t *low = block + g / 4 * 64 + g % 2 * 32, *high = block + 128 + g / 4 * 32;
    const int8_t *scales = (const int8_t *)block + 192 + g * 2;
    for (int v = 0; v < GROUP_VECTORS; v++) {
        const float scale = half(block + 208) * scales[v / HALF_GROUP];
        const ints q = (widen(low + v * LANES) >> (g % 4 / 2 * 4) & 15) | (widen(high + v * LANES) >> (g % 4 * 2) & 3) << 4;
        out[v] = scale * as_floats(q - 32);
    }
}

/* Plain 16-bit floats, of IEEE 754 and bfloat16, which is the upper half of a float. */
INLINE void group_f16(const uint8_t *from, lanes *out) {
    for (int v = 0; v < GROUP_VECTORS; v++) out[v] = widen_halves(from + v * 2 * LANES);
}

INLINE void group_bf16(const uint8_t *from, lanes *out) {
    for (int v = 0; v < GROUP_VECTORS; v++) out[v] = (lanes)(widen_words(from + v * 2 * LANES) << 16);
}

/* Group `group` of a row: 32 weights, in `out`. The type is a constant where this is inlined. */
INLINE void unpack_group(const int64_t type, const uint8_t *row, int64_t group, lanes *out) {
    switch (type) {
    case TYPE_F16: return group_f16(row + group * 64, out);
    case TYPE_BF16: return group_bf16(row + group * 64, out);
    case TYPE_Q4_0: return group_q4_0(row + group * 18, out);
    case TYPE_Q4_1: return group_q4_1(row + group * 20, out);
    case TYPE_Q5_0: return group_q5_0(row + group * 22, out);
    case TYPE_Q5_1: return group_q5_1(row + group * 24, out);
    case TYPE_Q8_0: return group_q8_0(row + group * 34, out);
    case TYPE_Q4_K: return group_q4_k(row + group / 8 * 144, group % 8, out);
    case TYPE_Q5_K: return group_q5_k(row + group / 8 * 176, group % 8, out);
    case TYPE_Q6_K: return group_q6_k(row + group / 8 * 210, group % 8, out);
    }
}

#define FOR_EACH_TYPE(USE)                                                                              \
    USE(TYPE_F16) USE(TYPE_BF16) USE(TYPE_Q4_0) USE(TYPE_Q4_1) USE(TYPE_Q5_0) USE(TYPE_Q5_1) USE(TYPE_Q8_0) \
    USE(TYPE_Q4_K) USE(TYPE_Q5_K) USE(TYPE_Q6_K)

INLINE void dequantise(const int64_t type, const uint8_t *restrict row, int64_t first_group, int64_t num_inputs,
                       float *restrict out) {
    lanes group[GROUP_VECTORS];
    int64_t g = 0;
    for (; g < num_inputs / GROUP; g++) {
        unpack_group(type, row, first_group + g, group);
        for (int v = 0; v < GROUP_VECTORS; v++) *(lanes *)(out + g * GROUP + v * LANES) = group[v];
    }
    const int64_t rest = type == TYPE_F16 || type == TYPE_BF16 ? num_inputs % GROUP : 0;
    if (rest == 0) return;
    uint8_t padded[2 * GROUP] = {0};
    memcpy(padded, row + (first_group + g) * 2 * GROUP, rest * 2);
    unpack_group(type, padded, 0, group);
    memcpy(out + g * GROUP, group, rest * sizeof(float));
}

/* out [num_inputs]: weights first_input .. of one row; first_input is a multiple of GROUP. */
static void dequantise_row(const Weight *weight, int64_t row, int64_t first_input, int64_t num_inputs, float *out) {
    const uint8_t *from = weight->blocks + row * weight->row_bytes;
    switch (weight->type) {
    case TYPE_F32: memcpy(out, from + first_input * 4, num_inputs * 4); break;
#define DEQUANTISE_CASE(type)                                              \
    case type: dequantise(type, from, first_input / GROUP, num_inputs, out); break;
        FOR_EACH_TYPE(DEQUANTISE_CASE)
    }
}
