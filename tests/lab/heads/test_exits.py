"""The target's first layers as its drafter: verification goes on above them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fused_models import fused_model
from target_drafts import made
from tiny_models import as_loaded, tiny_llama

from lab.heads.exit_runner import ExitRunner
from lab.heads.exits import Exit
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.config import EngineConfig


@pytest.fixture
def runner() -> ExitRunner:
    model = fused_model("llama")
    if not fuse_layers(model):
        pytest.skip("our kernels do not run here, and without them nothing is kept")
    loaded = replace(as_loaded(model), fused_pass=fused_pass(model))
    return ExitRunner.of(ModelRunner(loaded, num_slots=3, max_len=64))


def test_verification_goes_on_where_draft_passes_ended(runner, monkeypatch):
    """The first layers are fed the last draft token, a request without a draft, and a prompt; the
    others all tokens. Logits have the same bits as in a pass through all layers."""
    texts = [
        np.array(text, dtype=np.int32) for text in ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9])
    ]

    def piece(slot: int, start: int, end: int) -> Segment:
        return Segment(slot, start, texts[slot][start:end], end - start)

    expected = runner.forward([piece(0, 0, 5), piece(1, 0, 3), piece(2, 0, 5)])
    runner.forward([piece(0, 0, 2), piece(1, 0, 2)])
    runner.apply(())
    for place in (2, 3):
        runner.forward_exit([piece(0, place, place + 1)], 1)
    fed = []
    layers = runner._fused.layers

    def noted(hidden, plan, begin, end):
        fed.append((begin, end, len(plan.positions)))
        return layers(hidden, plan, begin, end)

    monkeypatch.setattr(runner._fused, "layers", noted)
    logits = runner.forward([piece(0, 2, 5), piece(1, 2, 3), piece(2, 0, 5)])
    num_layers = runner.loaded.num_layers
    assert fed == [(0, 1, 1 + 1 + 5), (1, num_layers, 3 + 1 + 5)]
    assert torch.equal(logits, torch.cat([expected[2:5], expected[7:8], expected[8:]]))


def test_rows_of_other_tokens_or_of_wiped_memory_are_not_used(runner):
    text = np.array([3, 1, 4, 1, 5], dtype=np.int32)
    expected = runner.forward([Segment(0, 0, text, 5)])
    runner.forward_exit([Segment(0, 2, text[2:3] + 1, 1)], 1)
    assert torch.equal(runner.forward([Segment(0, 2, text[2:], 3)]), expected[2:])
    runner.forward_exit([Segment(0, 2, text[2:3], 1)], 1)
    runner.apply(())
    assert runner._exited.of([Segment(0, 2, text[2:], 3)]) == {}


EXIT = "lab.heads.exits:Exit"


@pytest.mark.parametrize("layers", ["1", "0.5"])
def test_an_exit_is_named_by_layers_or_by_their_share(layers):
    assert EngineConfig(drafters=(f"{EXIT}:{layers}",)).drafters == (f"{EXIT}:{layers}",)
    assert made(f"{EXIT}:{layers}").num_layers == 1
    assert made(f"{EXIT}:{layers}").spec.name == "exit:1"


def test_exits_at_each_quarter():
    target = ModelRunner(replace(as_loaded(tiny_llama(0)), num_layers=30), num_slots=1, max_len=8)
    assert [Exit(target, part).num_layers for part in (0.25, 0.5, 0.75)] == [7, 15, 22]


@pytest.mark.parametrize(
    "layers", ["", ":0", ":-3", ":half", ":1.5", ":0.25", ":8:4", ":nan", ":inf", ":2"]
)
def test_an_exit_without_layers_below_and_above_it_is_refused(layers):
    with pytest.raises(ValueError, match=f"'{EXIT}{layers}'"):
        made(EXIT + layers)


def test_the_target_s_layers_are_named():
    with pytest.raises(
        ValueError,
        match=r"has 2 layers, so an exit must be after layer 1 to 1, as in Exit:1, .* got 2",
    ):
        made(f"{EXIT}:2")
