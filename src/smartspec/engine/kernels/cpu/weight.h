/* A weight as it lies in memory: rows of blocks as GGUF stores them, or of plain numbers. */
#pragma once

#include <stdint.h>

/* Numbers are those of ggml_type (GGUF specification, tensor infos). */
enum { TYPE_F32 = 0, TYPE_Q4_1 = 3 };

/* blocks [outputs, row_bytes], inputs a multiple of the type's block; bias [outputs] or NULL. */
typedef struct {
    const uint8_t *blocks;
    const float *bias;
    int64_t outputs, inputs, row_bytes, type;
} Weight;
