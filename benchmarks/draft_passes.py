"""Milliseconds of a draft by kind of head, beside a step of the target: what passes cost, before anything is said of
acceptance.

    python benchmarks/draft_passes.py --depth 5

Heads are untrained, of the shapes that `smartspec train-drafter` makes (EAGLE under the target's output embedding), and
draft chains for one request. Drafts and target passes take turns, so that all see the same machine; medians count.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from smartspec.core.batch import Batch
from smartspec.core.drafter import Drafter
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.eagle import EagleConfig, EagleHead
from smartspec.engine.drafting.head_kinds import Head, head_drafter
from smartspec.engine.models.checkpoint import locate, read_checkpoint
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.train.start import head_config, initial_head, initial_medusa, initial_p_eagle

CONTEXT = 256


def main(
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    depth: Annotated[int, typer.Option(help="Tokens of a draft.", min=1)] = 5,
    vocabulary: Annotated[int, typer.Option(help="Tokens that a head can draft.", min=1)] = 8192,
    repetitions: Annotated[int, typer.Option(min=1)] = 60,
) -> None:
    """Print the table."""
    source, files = locate(model)
    heads = make_heads(read_checkpoint(model, source, files, torch.float32, keep_blocks=False)[0], depth, vocabulary)
    loaded = load_model(model, device="cpu")
    calls = {kind: drafting(loaded, head, depth) for kind, head in heads.items()}
    names = {1: "a target step", 1 + depth: f"a target step over a draft of {depth}"}
    target = ModelRunner(loaded, num_slots=1, max_len=CONTEXT + depth + 1)
    target.cache.write_ones(0, 0, CONTEXT)
    for num, name in names.items():
        segments = [Segment(0, CONTEXT, np.arange(num, dtype=np.int32), num)]
        calls[name] = lambda segments=segments: target.forward(segments)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    step = median(seconds[names[1]])
    table = Table("", "ms", "share of a target step", title=f"{model}, drafts of {depth}")
    for name, times in seconds.items():
        table.add_row(name, f"{1e3 * median(times):.2f}", f"{median(times) / step:.1%}")
    Console().print(table)


def make_heads(target: nn.Module, depth: int, vocabulary: int) -> dict[str, Head]:
    """One of each kind for the stock target."""
    ids, config = np.arange(vocabulary), target.config.get_text_config()
    eagle = EagleConfig(head_config(target.config, vocabulary).layer, (config.num_hidden_layers + 1,))
    heads = {
        "eagle3": initial_head(target, ids, 1.0, seed=0),
        "p-eagle": initial_p_eagle(target, ids, 1.0, mask_token_id=0, num_depths=depth, seed=0),
        "medusa": initial_medusa(target, ids, depth),
        "eagle": EagleHead(eagle),
    }
    return {kind: head.requires_grad_(False).eval() for kind, head in heads.items()}


def drafting(loaded: LoadedModel, head: Head, depth: int) -> Callable[[], object]:
    """A call that drafts behind a text of CONTEXT tokens whose newest position the head has not read yet."""
    target = ModelRunner(loaded, num_slots=1, max_len=CONTEXT + depth + 1, taps=head.config.taps)
    drafter: Drafter = head_drafter(head, target, name="head", num_slots=1)
    text = np.arange(CONTEXT + 1, dtype=np.int32)
    request = Request(0, text, SamplingParams(max_tokens=depth, temperature=0.0), seed=0)
    request.slot = 0
    target.forward([Segment(0, 0, text[:-1], 1)])
    drafter.begin_step(Batch(prefill=(request,), num_prefill_tokens=(CONTEXT,)))
    drafter.observe(Batch(prefill=(request,), num_prefill_tokens=(CONTEXT,)), np.zeros(0, np.int64), (), (None,))
    request.num_computed_tokens = CONTEXT
    batch, lengths = Batch(decoding=(request,)), np.array([depth])

    def draft() -> None:
        drafter.begin_step(batch)
        (made,) = drafter.draft(batch, lengths, None)
        assert len(made) == depth

    draft()
    return draft


if __name__ == "__main__":
    typer.run(main)
