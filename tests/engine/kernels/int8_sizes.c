/* Linears on blocks of odd sizes, in memory of exactly their size, for sanitizers and valgrind: test_int8_activations.py. */
#include <stdio.h>
#include <stdlib.h>

#include "weight_row.h"

static void *exactly(int64_t bytes) {
    uint8_t *memory = malloc(bytes ? bytes : 1);
    for (int64_t i = 0; i < bytes; i++) memory[i] = rand() % 64; /* no number that is not finite */
    return memory;
}

static void check(int64_t type, int64_t inputs, int64_t outputs, int64_t num_rows, int64_t terms) {
    const int64_t groups = inputs / GROUP, panels = (outputs + PANEL - 1) / PANEL;
    const int64_t bytes = PANEL * (groups * group_bytes(type) + groups / 8 * head_bytes(type));
    uint8_t *blocks = exactly(panels * bytes);
    float *bias = exactly(4 * outputs), *x = exactly(4 * num_rows * inputs), *y = exactly(4 * num_rows * outputs);
    RoundedBlock *rounded = exactly(num_rows * groups * terms * sizeof(RoundedBlock));
    const Weight weight = {blocks, bias, outputs, inputs, bytes, type, terms};
    for (int64_t row = 0; row < num_rows; row++) round_row(x + row * inputs, inputs, terms, row, num_rows, rounded);
    linear_slice(&weight, x, rounded, num_rows, y, outputs, 0, panels);
    float sum = 0.0f, *row = exactly(4 * inputs);
    for (int64_t i = 0; i < num_rows * outputs; i++) sum += y[i];
    weight_row(&weight, outputs - 1, row);
    if (sum == 0.123f) puts("a value that depends on all");
    free(blocks), free(bias), free(x), free(y), free(rounded), free(row);
}

int main(void) {
    const int64_t sizes[] = {1, 13, PANEL, 2 * PANEL + 1}, rows[] = {0, 1, 2, 5, 9, 13, 16, 17, 33, 130};
#define CHECK(type)                                                                  \
    for (int i = 0; i < 4; i++)                                                      \
        for (int j = 0; j < 10; j++) {                                                \
            check(type, is_k(type) ? 256 : 32, sizes[i], rows[j], 1);                \
            check(type, is_k(type) ? 512 : 96, sizes[i], rows[j], 1 + i % 2);        \
        }
    FOR_EACH_ROUNDED_TYPE(CHECK)
    puts("done");
    return 0;
}
