/* A weight as it lies in memory: rows of blocks as GGUF stores them, or of plain numbers. */
#pragma once

#include <stdint.h>

/* Numbers of ggml_type (GGUF specification, tensor infos). */
enum {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_BF16 = 30,
};

/* blocks [outputs, row_bytes], inputs a multiple of 32 or, of K types, of 256, of plain types any; bias [outputs] or
 * NULL. rounds: x is rounded, to bfloat16 for weights of bfloat16, and for blocks to so many
 * terms of 8 bits each. */
typedef struct {
    const uint8_t *blocks;
    const float *bias;
    int64_t outputs, inputs, row_bytes, type, rounds;
} Weight;
