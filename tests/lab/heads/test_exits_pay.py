"""Exits of the target as drafters of `goodput`, on a clock of layers: they pay where a model was
trained for early exits, and stay off where it was not.

A pass takes as long as its layers, and the output embedding as long as so many more (DEL, arXiv
2504.05598, counts layers too). So nothing here depends on the machine.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from default_model import default_tokenizer, load_once
from real_prompts import PROMPTS
from target_drafts import prompts
from tiny_engine import outputs
from tiny_models import SHAPE, as_loaded
from transformers import LlamaConfig, LlamaForCausalLM

from lab.heads.exits import Exit
from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.policy_names import parse_policy
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.engine.attention.ragged import ATTENTION_NAME, register_attention
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor

NUM_LAYERS = 16
K = 5


class LayerClock(LiveExecutor):
    """Whose seconds are layers that were run. of_output: layers that the output embedding takes as
    long as."""

    def __init__(self, runner: ModelRunner, drafters: tuple[Exit, ...], of_output: float):
        super().__init__(runner, drafters)
        self.num_layers = 0.0
        runner.forward = self._counted(
            runner.forward, lambda segments: runner.loaded.num_layers + of_output
        )
        runner.forward_exit = self._counted(
            runner.forward_exit, lambda segments, layers: layers + of_output
        )

    def _counted(self, run, cost):
        def counted(*arguments):
            self.num_layers += cost(*arguments)
            return run(*arguments)

        return counted

    def clock(self) -> float:
        return self.num_layers


def layered_llama(of_upper_layers: float) -> LlamaForCausalLM:
    """What the layers above the fourth add is scaled: early-exit training has them add little."""
    register_attention()
    torch.manual_seed(0)
    shape = SHAPE | {"num_hidden_layers": NUM_LAYERS}
    model = (
        LlamaForCausalLM(LlamaConfig(**shape, attn_implementation=ATTENTION_NAME))
        .eval()
        .requires_grad_(False)
    )
    for layer in model.model.layers[NUM_LAYERS // 4 :]:
        layer.self_attn.o_proj.weight *= of_upper_layers
        layer.mlp.down_proj.weight *= of_upper_layers
    return model


def make_core(loaded: LoadedModel, policy: str, of_output: float) -> EngineCore:
    target = ModelRunner(loaded, num_slots=4, max_len=128)
    exits = tuple(Exit(target, part) for part in (0.25, 0.5, 0.75))
    curves = [
        CostCurve.linear(n + of_output, 0.0)
        for n in (loaded.num_layers, *(each.num_layers for each in exits))
    ]
    specs = tuple(drafter.spec for drafter in exits)
    controller = Controller(
        parse_policy(policy), K, LatencyModel(curves[0], tuple(curves[1:])), drafters=specs
    )
    scheduler = Scheduler(
        BlockManager(128, 4, 4), max_batched_tokens=64, max_model_len=128, max_draft_tokens=K
    )
    return EngineCore(scheduler, LayerClock(target, exits, of_output), controller)


def run(
    core: EngineCore, of: list[list[int]], max_tokens: int
) -> tuple[list[list[int]], float, np.ndarray]:
    """One request after another: the texts, emitted tokens per layer, and draft tokens by
    drafter."""
    texts, drafted = [], np.zeros(3, dtype=int)
    learn = core.controller.learn

    def noted(plan, outcome):
        for number in range(len(drafted)):
            drafted[number] += outcome.drafted[plan.drafter == number].sum()
        learn(plan, outcome)

    core.controller.learn = noted
    for number, prompt in enumerate(of):
        request = Request(
            number,
            prompt,
            SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            seed=0,
        )
        core.add_request(request)
        while core.has_work:
            core.step(core.executor.num_layers)
        texts += outputs([request])
    return texts, len(of) * max_tokens / core.executor.num_layers, drafted


@pytest.mark.parametrize(("of_upper_layers", "pays"), [(0.01, True), (1.0, False)])
def test_they_pay_where_the_layers_above_add_little(of_upper_layers, pays):
    loaded = replace(
        as_loaded(layered_llama(of_upper_layers)),
        num_layers=NUM_LAYERS,
        windows=(None,) * NUM_LAYERS,
    )
    of = prompts(6)
    plain, without, _ = run(make_core(loaded, "off", 0.0), of, 60)
    found, rate, drafted = run(make_core(loaded, "goodput", 0.0), of, 60)
    assert found == plain
    if pays:
        # the first exit is as good as the others
        assert rate > 1.5 * without and drafted.argmax() == 0
    else:
        assert rate > 0.95 * without and drafted.sum() < 0.2 * 6 * 60


def test_on_the_default_model_they_stay_off():
    """It was not trained for exits: what is drafted is what shows so."""
    loaded = load_once(DEFAULT_MODEL)
    of = [default_tokenizer().encode("\n\n".join(PROMPTS))[:40]]
    of_output = 8.0  # 28 million weights beside 3.5 of a layer
    plain, without, _ = run(make_core(loaded, "off", of_output), of, 80)
    found, rate, drafted = run(make_core(loaded, "goodput", of_output), of, 80)
    assert found == plain
    assert 0 < drafted.sum() < 0.25 * 80 and rate > 0.9 * without
