"""The best draft length on mixtures of experts by number of requests, beside dense models of their
active size."""

from collections.abc import Iterable

import numpy as np

from smartspec.sim.world.hardware import ModelShape, Roofline, roofline

DEVICES = {"mixtral-8x7b": 2, "qwen-3-30b-a3b": 1, "deepseek-moe-16b": 1}
CONTEXT_TOKENS = 512


def rows_of(
    accelerator: str, acceptance: float, max_length: int, sizes: Iterable[int]
) -> list[dict]:
    """A row for each model, mixture and dense: the best length by number of requests."""
    rows = []
    for name, devices in DEVICES.items():
        mixture = roofline(accelerator, name, devices)
        dense = Roofline(mixture.accelerator, dense_of_the_active_size(mixture.model), devices)
        for kind, target in (("mixture", mixture), ("dense of the active size", dense)):
            best = {size: best_length(target, size, acceptance, max_length) for size in sizes}
            rows.append({"model": name, "kind": kind, "devices": devices, "best": best})
    return rows


def best_length(target: Roofline, num_rows: int, acceptance: float, max_length: int) -> int:
    """Of most tokens per second, if drafts cost nothing and each token is accepted with that
    chance."""
    lengths = np.arange(max_length + 1)
    fed = num_rows * (1 + lengths)
    seconds = target.seconds(fed, CONTEXT_TOKENS * num_rows + fed, num_rows)
    return int((np.cumsum(acceptance**lengths) / seconds).argmax())


def dense_of_the_active_size(shape: ModelShape) -> ModelShape:
    """A dense model whose tokens go through as many weights."""
    inner = shape.intermediate + shape.experts_per_token * shape.expert_intermediate
    attention = shape.heads, shape.kv_heads, shape.head_dim
    return ModelShape(shape.layers, shape.hidden, inner, *attention, shape.vocabulary)
