"""As test_on_device, of drafters of the lab."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from compiled import attend_in_torch
from test_on_device import META, counted, meta_is_a_device, of_all_kinds, runner_on_meta, tokens
from tiny_models import as_loaded, tiny_llama

from lab.heads.exit_runner import ExitRunner
from lab.heads.exits import Exit
from lab.heads.medusa.drafter import MedusaRunner
from lab.heads.medusa.head import MedusaConfig, MedusaHead
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.model_runner import ModelRunner

__all__ = ["meta_is_a_device"]


def test_a_pass_of_an_exit_that_is_timed_is_over_when_it_returns():
    run = Exit(runner_on_meta(), 1).profile_pass(2, 1, 20)
    with pytest.raises(NotImplementedError, match="out of meta tensor"):
        run()


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_medusa_knows_which_heads_run_without_asking_the_device(num_outputs):
    config = MedusaConfig(32, 61, 61, num_heads=3, num_layers=1, num_outputs=num_outputs, taps=(3,))
    target = SimpleNamespace(
        loaded=replace(as_loaded(tiny_llama()), device=META),
        device=META,
        max_len=64,
        max_tile_tokens=0,
    )
    runner = MedusaRunner(
        MedusaHead(config).requires_grad_(False), target, name="medusa", num_slots=4
    )
    logits = runner.forward([Segment(2, 0, tokens(1), 3), Segment(0, 0, tokens(1), 2)])
    assert logits.shape == (5, 61) and logits.device == META
    assert runner.target_ids.device.type == "cpu", "a pass would copy the whole vocabulary back"


def test_an_exit_below_the_layers_that_a_head_reads_is_passed_module_by_module(monkeypatch):
    """As on a device: there is no fused pass."""
    attend_in_torch(monkeypatch)
    beside_a_head, alone = (
        ExitRunner.of(ModelRunner(as_loaded(tiny_llama()), num_slots=4, max_len=64, taps=t))
        for t in ((1, 2), ())
    )
    segments = [Segment(2, 0, tokens(5), 5)]
    assert torch.equal(beside_a_head.forward_exit(segments, 1), alone.forward_exit(segments, 1))


def test_layers_copy_nothing_to_the_device():
    """What they need of the batch is there before the first runs, and each layer would wait for the
    one before."""
    runner, copies = ExitRunner.of(runner_on_meta()), []
    for num_layers in (1, 2):
        with counted() as operations:
            runner.forward_exit(of_all_kinds(), num_layers)
        copies.append(operations.num_copies)
    assert copies[0] == copies[1] > 0
