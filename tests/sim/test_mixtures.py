"""Mixtures of experts: the first draft tokens are dear, as each needs experts of its own, and
beside many requests they are cheap again."""

import numpy as np
import pytest

from smartspec.sim.world.hardware import MODEL_SHAPES, ModelShape, Roofline, roofline

# devices, billions
MIXTURES = {"mixtral-8x7b": (2, 12.9), "qwen-3-30b-a3b": (1, 3.3), "deepseek-moe-16b": (1, 2.8)}
LENGTHS = np.arange(9)
ACCEPTANCE = 0.7


def best_length(target: Roofline, num_rows: int) -> int:
    """Of free drafts, at 512 tokens of context."""
    fed = num_rows * (1 + LENGTHS)
    seconds = target.seconds(fed, 512 * num_rows + fed, num_rows)
    return int((np.cumsum(ACCEPTANCE**LENGTHS) / seconds).argmax())


def dense_of_the_active_size(shape: ModelShape) -> ModelShape:
    inner = shape.intermediate + shape.experts_per_token * shape.expert_intermediate
    attention = shape.heads, shape.kv_heads, shape.head_dim
    return ModelShape(shape.layers, shape.hidden, inner, *attention, shape.vocabulary)


@pytest.mark.parametrize("name", MIXTURES)
def test_as_many_weights_are_active_as_published(name):
    shape = MODEL_SHAPES[name]
    active = (
        shape.layer_weights
        + shape.experts_per_token * shape.expert_weights
        + 2 * shape.head_weights
    )
    assert active / 1e9 == pytest.approx(MIXTURES[name][1], rel=0.03)


def test_a_mixture_with_a_dense_first_layer_is_a_little_too_large():
    assert MODEL_SHAPES["deepseek-moe-16b"].stored_weights / 1e9 == pytest.approx(16.38, rel=0.035)


def test_experts_that_are_read_grow_from_those_of_a_token_to_all():
    shape = MODEL_SHAPES["mixtral-8x7b"]
    assert shape.distinct_experts(1) == pytest.approx(2.0)
    assert shape.distinct_experts(2) == pytest.approx(3.5)  # 8 (1 - 0.75^2)
    assert shape.distinct_experts(64) == pytest.approx(8.0)


@pytest.mark.parametrize("name", MIXTURES)
def test_one_request_has_shorter_drafts_than_on_a_dense_model_and_many_have_longer_ones(name):
    """The crossing: beside a few requests a draft token reads experts that no other needs; beside
    many all are read anyway, and the arithmetic of a token is that of the active weights alone."""
    devices = MIXTURES[name][0]
    mixture = roofline("h100", name, devices)
    dense = Roofline(mixture.accelerator, dense_of_the_active_size(mixture.model), devices)
    assert best_length(mixture, 1) < best_length(dense, 1)
    assert best_length(mixture, 256) > best_length(dense, 256)
