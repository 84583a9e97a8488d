"""As test_on_device, of drafters of the lab."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_on_device import META, meta_is_a_device, runner_on_meta, tokens
from tiny_models import as_loaded, tiny_llama

from lab.heads.exits import Exit
from lab.heads.medusa.drafter import MedusaRunner
from lab.heads.medusa.head import MedusaConfig, MedusaHead
from smartspec.engine.attention.ragged import Segment

__all__ = ["meta_is_a_device"]


def test_a_pass_of_an_exit_that_is_timed_is_over_when_it_returns():
    run = Exit(runner_on_meta(), 1).profile_pass(2, 1, 20)
    with pytest.raises(NotImplementedError, match="out of meta tensor"):
        run()


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_medusa_knows_which_heads_run_without_asking_the_device(num_outputs):
    config = MedusaConfig(32, 61, 61, num_heads=3, num_layers=1, num_outputs=num_outputs, taps=(3,))
    target = SimpleNamespace(
        loaded=replace(as_loaded(tiny_llama()), device=META), device=META, max_len=64, max_tile_tokens=0
    )
    runner = MedusaRunner(MedusaHead(config).requires_grad_(False), target, name="medusa", num_slots=4)
    logits = runner.forward([Segment(2, 0, tokens(1), 3), Segment(0, 0, tokens(1), 2)])
    assert logits.shape == (5, 61) and logits.device == META
    assert runner.target_ids.device.type == "cpu", "a pass would copy the whole vocabulary back"
