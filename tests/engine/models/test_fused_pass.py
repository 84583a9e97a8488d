"""Which models have a pass without transformers' code around the layers (what it computes:
test_layer_forms.py)."""

import numpy as np
import pytest
import torch
from compiled import need_kernels
from fused_models import fused_model, random_passes, runner_of

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fused_pass import fused_pass


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def model_in_layers(model_type: str, **changes: object) -> torch.nn.Module:
    model = fused_model(model_type, num_hidden_layers=2, **changes)
    assert fuse_layers(model) == 2
    return model


def test_transformers_forward_is_not_called():
    model = model_in_layers("llama")
    runner = runner_of(model, fused_pass(model))
    model.forward = lambda **kwargs: pytest.fail("the model's own forward ran")
    assert runner.forward([Segment(0, 0, np.arange(5, dtype=np.int32), 2)]).shape == (2, 61)


def test_models_that_compute_something_else_around_their_layers_keep_their_forward():
    assert fused_pass(model_in_layers("gemma3_text")) is not None
    assert fused_pass(model_in_layers("gemma3_text", final_logit_softcapping=0.5)) is None


def test_layers_that_are_not_fused_have_no_such_pass():
    assert fused_pass(fused_model("llama")) is None


def test_without_our_attention_the_models_modules_compute():
    model = model_in_layers("llama")
    expected, actual = runner_of(fused_model("llama")), runner_of(model, fused_pass(model))
    actual.max_tile_tokens = expected.max_tile_tokens = 0
    for segments in random_passes():
        assert torch.equal(actual.forward(segments), expected.forward(segments))
