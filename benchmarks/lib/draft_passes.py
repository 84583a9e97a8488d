"""Times of a draft by kind of head, beside a step of the target."""

from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from lab.heads.eagle.head import EagleConfig, EagleHead
from lab.train.start import (
    head_config,
    initial_head,
    initial_medusa,
    initial_p_eagle,
    initial_redrafter,
)
from lib.timing import WALL, in_turns
from smartspec.core.batch import Batch
from smartspec.core.drafter import Drafter
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.kinds import head_drafter
from smartspec.engine.models.checkpoint import locate, read_checkpoint
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

CONTEXT = 256


def compare(model: str, depth: int, vocabulary: int, repetitions: int) -> None:
    """Print the table. Arguments are the options of `drafters.py passes`."""
    source, files = locate(model)
    heads = make_heads(
        read_checkpoint(model, source, files, torch.float32, keep_blocks=False)[0],
        depth,
        vocabulary,
    )
    loaded = load_model(model, device="cpu")
    calls = {kind: drafting(loaded, head, depth) for kind, head in heads.items()}
    names = {1: "a target step", 1 + depth: f"a target step over a draft of {depth}"}
    target = ModelRunner(loaded, num_slots=1, max_len=CONTEXT + depth + 1)
    target.cache.write_ones(0, 0, CONTEXT)
    for num, name in names.items():
        segments = [Segment(0, CONTEXT, np.arange(num, dtype=np.int32), num)]
        calls[name] = lambda segments=segments: target.forward(segments)
    medians = np.median(in_turns(list(calls.values()), repetitions)[..., WALL], axis=0)
    seconds = dict(zip(calls, medians, strict=True))
    table = Table("", "ms", "share of a target step", title=f"{model}, drafts of {depth}")
    for name, middle in seconds.items():
        table.add_row(name, f"{1e3 * middle:.2f}", f"{middle / seconds[names[1]]:.1%}")
    Console().print(table)


def make_heads(target: nn.Module, depth: int, vocabulary: int) -> dict[str, nn.Module]:
    """One of each kind for the stock target."""
    ids, config = np.arange(vocabulary), target.config.get_text_config()
    eagle = EagleConfig(
        head_config(target.config, vocabulary).layer, (config.num_hidden_layers + 1,)
    )
    heads = {
        "eagle3": initial_head(target, ids, 1.0, seed=0),
        "p-eagle": initial_p_eagle(target, ids, 1.0, mask_token_id=0, num_depths=depth, seed=0),
        "medusa": initial_medusa(target, ids, depth),
        "redrafter": initial_redrafter(target, ids, seed=0),
        "eagle": EagleHead(eagle),
    }
    return {kind: head.requires_grad_(False).eval() for kind, head in heads.items()}


def drafting(loaded: LoadedModel, head: nn.Module, depth: int) -> Callable[[], object]:
    """A call that drafts after a text of CONTEXT tokens whose newest position the head has not read
    yet."""
    target = ModelRunner(loaded, num_slots=1, max_len=CONTEXT + depth + 1, taps=head.config.taps)
    drafter: Drafter = head_drafter(head, target, name="head", num_slots=1)
    text = np.arange(CONTEXT + 1, dtype=np.int32)
    request = Request(0, text, SamplingParams(max_tokens=depth, temperature=0.0), seed=0)
    request.slot = 0
    target.forward([Segment(0, 0, text[:-1], 1)])
    drafter.begin_step(Batch(prefill=(request,), num_prefill_tokens=(CONTEXT,)))
    drafter.observe(
        Batch(prefill=(request,), num_prefill_tokens=(CONTEXT,)), np.zeros(0, np.int64), (), (None,)
    )
    request.num_computed_tokens = CONTEXT
    batch, lengths = Batch(decoding=(request,)), np.array([depth])

    def draft() -> None:
        drafter.begin_step(batch)
        (made,) = drafter.draft(batch, lengths, None)
        assert len(made) == depth

    draft()
    return draft
