/* Linears on weights in blocks or panels (linear.h), and whole passes in one call: of decoder layers (decoder_layer.h) and of
 * a head (head_pass.h). One library, because the kernels of linears, which both run, take most of the time to compile.
 */
#include "block_layout.h"
#include "built_with.h"
#include "decoder_layer.h"
#include "head_pass.h"
#include "weight_row.h"

/* One layer after the other; the first reads p->input. One team does it all. */
void decoder_layers(const PlacedLayer *layers, int64_t num_layers, const Pass *p) {
#pragma omp parallel
    {
        Pass pass = *p;
        for (int64_t i = 0; i < num_layers; i++, pass.input = pass.output) {
            const Layer *layer = layers[i].layer;
            pass.attention.keys = layers[i].keys;
            pass.attention.values = layers[i].values;
            pass.attention.window = layers[i].window;
            pass.attention.scale = layers[i].scale;
            pass.table = layers[i].table;
            const float *x = read_rows(layer, layer->attention_norm, pass.input, &layer->qkv, &pass);
            layer_after_norm(layer, &pass, x, pass.input);
#pragma omp barrier
        }
    }
}

void head_pass(const Head *head, const HeadPass *p) {
#pragma omp parallel
    head_in_team(head, p);
}

int64_t panel_width(void) { return PANEL; }

/* The most inputs of a weight whose x can be rounded to bfloat16, 0 where this processor does not multiply that. */
int64_t most_rounded_inputs(void) { return MULTIPLIES_BF16 ? ROUNDED_NUMBERS : 0; }

const char *int8_instructions(void) { return INT8_INSTRUCTIONS; }

/* Bytes of 32 inputs of a row that are rounded to 8 bits. */
int64_t rounded_block_bytes(void) { return sizeof(RoundedBlock); }

/* The first weight->outputs columns of y [num_rows, y_stride] = x [num_rows, weight->inputs] @ weight.T + bias. rounded:
 * memory for x in 8 bits, where the weight reads that. */
void linear(const Weight *weight, const float *x, RoundedBlock *rounded, int64_t num_rows, float *y, int64_t y_stride) {
#pragma omp parallel
    {
        int64_t first, last;
        share_of_panels(weight, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        if (reads_blocks(weight)) {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < num_rows; row++)
                round_row(x + row * weight->inputs, weight->inputs, weight->rounds, row, num_rows, rounded);
        }
        linear_slice(weight, x, rounded, num_rows, y, y_stride, first, last);
    }
}

/* Bytes of a panel of that many inputs. */
int64_t panel_bytes(int64_t type, int64_t inputs) {
    const int64_t groups = inputs / GROUP;
    switch (type) {
#define BYTES_CASE(type) case type: return PANEL * (groups * group_bytes(type) + groups / 8 * head_bytes(type));
        FOR_EACH_BLOCK_PANEL(BYTES_CASE)
    }
    return 0;
}

/* out [num_rows, weight->inputs] = rows of the weight in fp32. */
void dequantise_rows(const Weight *weight, const int64_t *rows, int64_t num_rows, float *out) {
#pragma omp parallel for
    for (int64_t i = 0; i < num_rows; i++)
        weight_row(weight, rows[i], out + i * weight->inputs);
}

/* to, which is all zeros: the blocks of a weight by panels, of the type of panels for its blocks. */
void to_block_panels(const Weight *weight, int64_t panel_type, uint8_t *to) {
    const int64_t groups = weight->inputs / GROUP, stride = panel_bytes(panel_type, weight->inputs);
    const int64_t block_groups = is_k(panel_type) ? 8 : 1, block_bytes = weight->row_bytes / (groups / block_groups);
#pragma omp parallel for
    for (int64_t panel = 0; panel < (weight->outputs + PANEL - 1) / PANEL; panel++)
        for (int64_t lane = 0; lane < PANEL && panel * PANEL + lane < weight->outputs; lane++) {
            const uint8_t *row = weight->blocks + (panel * PANEL + lane) * weight->row_bytes;
            for (int64_t g = 0; g < groups; g++)
                place_group(weight->type, panel_type, row + g / block_groups * block_bytes, g % block_groups,
                            to + panel * stride + group_place(panel_type, g), lane);
        }
}
