/* A decoder layer of Llama's shape, or a whole head, in one call: see decoder_layer.h and head_pass.h. */
#include "built_with.h"
#include "decoder_layer.h"
#include "head_pass.h"

void decoder_layer(const Layer *layer, const Pass *p) {
#pragma omp parallel
    {
        norm_rows(p->input, layer->attention_norm, layer->epsilon, p, layer->out.outputs);
        layer_behind_norm(layer, p, p->normed, p->input);
    }
}

void head_pass(const Head *head, const HeadPass *p) {
#pragma omp parallel
    head_in_team(head, p);
}
