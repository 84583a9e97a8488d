/* Whole passes in one call: of decoder layers (decoder_layer.h) and of a head (head_pass.h). */
#include "built_with.h"
#include "decoder_layer.h"
#include "head_pass.h"

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
            const float *x = layer->attention_norm ? pass.normed : pass.input;
            if (layer->attention_norm)
                norm_rows(pass.input, layer->attention_norm, layer->epsilon, &layer->qkv, &pass, layer->out.outputs);
            else round_rows_for(&layer->qkv, x, &pass);
            layer_after_norm(layer, &pass, x, pass.input);
#pragma omp barrier
        }
    }
}

void head_pass(const Head *head, const HeadPass *p) {
#pragma omp parallel
    head_in_team(head, p);
}
