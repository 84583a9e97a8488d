"""Medusa heads that compute what their target computes: no token of their drafts is rejected.

A Medusa head reads one position and no text, so its target is one whose next token follows from the
newest.
"""

import numpy as np
import pytest
import torch
from head_cases import LAST, SIZE
from test_exact_head import DOUBT, test_every_draft_is_accepted_to_its_end
from tiny_models import VOCABULARY, as_loaded, tiny_llama
from torch import nn

from lab.heads.medusa.head import MedusaConfig, MedusaHead
from smartspec.engine.models.loaded_model import LoadedModel

__all__ = ["test_every_draft_is_accepted_to_its_end"]
DEPTH = 4  # of drafts


def medusa_pair() -> tuple[LoadedModel, MedusaHead]:
    """The tokens follow each other in one circle."""
    model = tiny_llama(0)
    circle = torch.from_numpy(np.random.default_rng(0).permutation(VOCABULARY))
    embedding = nn.functional.normalize(model.model.embed_tokens.weight, dim=1) * SIZE**0.5
    model.model.embed_tokens.weight.copy_(embedding)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[:] = layer.mlp.down_proj.weight[:] = 0.0
    model.lm_head.weight[circle.roll(-1)] = embedding[circle]
    head = (
        MedusaHead(MedusaConfig(SIZE, VOCABULARY, VOCABULARY, DEPTH, 1, DEPTH, LAST))
        .requires_grad_(False)
        .eval()
    )
    for number, output in enumerate(head.lm_heads):
        head.blocks[number].layers[0].weight[:] = 0.0
        output.weight[circle.roll(-2 - number)] = embedding[circle] * DOUBT
    return as_loaded(model), head


@pytest.fixture
def pair():
    return medusa_pair
