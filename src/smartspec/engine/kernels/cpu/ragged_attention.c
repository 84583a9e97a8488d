/* Attention of a ragged batch in one call; see attention.h. */
#include "attention.h"
#include "built_with.h"

void ragged_attention(const Attention *a) {
#pragma omp parallel
    attend_in_team(a);
}
