"""A pass of a model whose layers are all fused: embedding, the layers in one call, norm, head.

Without transformers' own forward around the layers, which at one token of a small model takes as
long as a quarter of its weights. As with layers, it is used only where it reproduces the model.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.probe import probe
from smartspec.engine.attention.ragged import AttentionPlan
from smartspec.engine.kernels.cpu.decoder_layer import PlacedLayer
from smartspec.engine.models.decoder_layer import FusedDecoderLayer, first_tokens
from smartspec.engine.models.fusion import NUM_PROBE_ROWS, FusedRMSNorm, close
from smartspec.engine.models.rotary_table import Rotary, rotary_table, side_by_side
from smartspec.engine.models.taps import decoder_layers


@dataclass(frozen=True)
class FusedPass:
    """The parts of a model: what it embeds tokens and positions with, its layers, and what follows
    them."""

    embedding: nn.Module
    rotaries: tuple[Rotary, ...]
    # of each layer, the number of its position embeddings among the rotaries
    tables: tuple[int, ...]
    layers: tuple[FusedDecoderLayer, ...]
    norm: FusedRMSNorm
    head: nn.Module
    scales: tuple[float, float]  # what the model multiplies embeddings and logits by


class PlacedPass:
    """A model's parts over one cache, which must outlive it; what is the same in every pass is
    prepared here."""

    def __init__(self, parts: FusedPass, cache: KVCache, windows: tuple[int | None, ...]):
        self._parts = parts
        self._layers = [
            layer.placed(cache, windows, table)
            for layer, table in zip(parts.layers, parts.tables, strict=True)
        ]
        self._spans: dict[tuple[int, int], object] = {}
        rotary = side_by_side(parts.rotaries)
        self._rotary = rotary_table(rotary, cache.keys[0].shape[2]) or rotary

    def run(
        self,
        token_ids: torch.Tensor,
        plan: AttentionPlan,
        wanted: torch.Tensor | None,
        taps: tuple[int, ...],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits [n, vocabulary] of the wanted rows, int64 [n] (None: of all), of token_ids, int64
        [N], and what the first i layers computed, [1, N, hidden_size], for every i in taps
        (ascending)."""
        num_layers = len(self._layers)
        hidden, found, begin = self.embed(token_ids), [], 0
        for end in (*taps, num_layers):
            hidden = self.layers(hidden, plan, begin, end)
            found.append(hidden if end <= num_layers else self._parts.norm(hidden))  # see taps
            begin = end
        return self.logits(hidden, wanted), found[: len(taps)]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The input of the first layer for token_ids, int64 [N]: [1, N, hidden_size]."""
        return _scaled(self._parts.embedding(token_ids[None]), self._parts.scales[0])

    def layers(
        self, hidden: torch.Tensor, plan: AttentionPlan, begin: int, end: int
    ) -> torch.Tensor:
        """The output of layers begin..end - 1 for their input, both [1, N, hidden_size]."""
        if end <= begin:
            return hidden
        parts = self._parts
        positions = plan.once("rotary", lambda: self._rotary(hidden, plan.positions[None]))
        of_pass = parts.layers[0].of_pass(plan, len(parts.rotaries))
        return of_pass.run(self._span(begin, end), hidden, *positions)

    def logits(self, hidden: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
        """The logits of the last layer's output, [1, N, hidden_size]: [n, vocabulary], see run."""
        scored = hidden if wanted is None else hidden[:, wanted]
        return _scaled(self._parts.head(self._parts.norm(scored))[0], self._parts.scales[1])

    def _span(self, begin: int, end: int) -> object:
        """The layers as the kernel takes them: a ctypes array."""
        end = min(end, len(self._layers))
        if (begin, end) not in self._spans:
            self._spans[begin, end] = (PlacedLayer * (end - begin))(*self._layers[begin:end])
        return self._spans[begin, end]


@torch.inference_mode()
def fused_pass(model: nn.Module) -> FusedPass | None:
    """The model's parts in this order, where they compute what the model does."""
    try:
        layers = tuple(decoder_layers(model))
    except ValueError:
        return None
    if (
        not all(isinstance(layer, FusedDecoderLayer) for layer in layers)
        or len({layer.shape for layer in layers}) > 1
    ):
        return None
    inner = {module for layer in layers for module in layer.modules()}
    norms = [
        module
        for module in model.modules()
        if isinstance(module, FusedRMSNorm) and module not in inner
    ]
    rotaries = _rotaries_of(model, layers)
    if len(norms) != 1 or rotaries is None:
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found = FusedPass(
        embedding, *rotaries, layers, norms[0], head, _scales(model, embedding, layers[0], head)
    )
    return found if _reproduces(found, model) else None


def _scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x if scale == 1.0 else x * scale


def _scales(
    model: nn.Module, embedding: nn.Module, first: nn.Module, head: nn.Module
) -> tuple[float, float]:
    """The factors by which the model multiplies the embedding's and the head's output, if it
    does."""
    seen: dict[str, torch.Tensor] = {}
    with (
        embedding.register_forward_hook(
            lambda module, args, output: seen.update(embedded=output.clone())
        ),
        first.register_forward_pre_hook(
            lambda module, args, kwargs: seen.update(
                read=args[0] if args else kwargs["hidden_states"]
            ),
            with_kwargs=True,
        ),
        head.register_forward_hook(
            lambda module, args, output: seen.update(output=output[0].clone())
        ),
    ):
        logits = probe(model)[0]
    return _ratio(seen["read"], seen["embedded"]), _ratio(logits, seen["output"])


def _ratio(x: torch.Tensor, to: torch.Tensor) -> float:
    """The ratio of x to the largest number of `to`, 1 where they are equal."""
    largest = to.abs().argmax()
    return 1.0 if torch.equal(x, to) else float(x.flatten()[largest] / to.flatten()[largest])


def _rotaries_of(
    model: nn.Module, layers: tuple[FusedDecoderLayer, ...]
) -> tuple[tuple[Rotary, ...], tuple[int, ...]] | None:
    """The modules that give the layers their position embeddings, and which of them each layer is
    given; None where a layer's are no module's output."""
    made: list[tuple[Rotary, object]] = []
    given: list[object] = []

    def note_made(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        made.append((_as_called(module, args, kwargs), output))

    def note_given(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        given.append(kwargs.get("position_embeddings"))

    with ExitStack() as hooks:
        for module in model.modules():
            if not list(module.children()):
                hooks.enter_context(module.register_forward_hook(note_made, with_kwargs=True))
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(note_given, with_kwargs=True))
        probe(model)
    # Of all outputs only position embeddings are tuples that layers are given.
    outputs = [
        (rotary, output)
        for rotary, output in made
        if any(output is positions for positions in given)
    ]
    tables = [
        next((i for i, (_, o) in enumerate(outputs) if o is positions), None) for positions in given
    ]
    if (
        len(tables) != len(layers)
        or None in tables
        or not all(isinstance(output, tuple) for _, output in outputs)
    ):
        return None
    return tuple(rotary for rotary, _ in outputs), tuple(tables)


def _as_called(module: nn.Module, args: tuple, kwargs: dict[str, object]) -> Rotary:
    """The module with what else it was given, as the kind of layer that it computes positions
    for."""
    rest, named = (
        args[2:],
        {name: value for name, value in kwargs.items() if not isinstance(value, torch.Tensor)},
    )
    return lambda hidden, positions: module(hidden, positions, *rest, **named)


def _reproduces(found: FusedPass, model: nn.Module) -> bool:
    """Compare their logits of the first tokens of a text."""
    tokens = np.linspace(0, found.embedding.num_embeddings - 1, NUM_PROBE_ROWS).astype(np.int32)
    plan = first_tokens(found.layers[0].shape, len(found.layers), tokens)
    token_ids = torch.from_numpy(tokens.astype(np.int64))
    expected = model(
        input_ids=token_ids[None],
        position_ids=plan.positions[None],
        use_cache=False,
        attention_plan=plan,
    ).logits[0]
    placed = PlacedPass(found, plan.cache, plan.windows)
    return close(placed.run(token_ids, plan, None, ())[0], expected)
