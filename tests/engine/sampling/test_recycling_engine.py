"""Recycling in the engine, on a tiny model: drafts from what other requests wrote, and the same
tokens as without."""

import numpy as np
import pytest
from tiny_engine import RandomPlans, core_of, outputs, run
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from smartspec.control.planning import no_drafts
from smartspec.control.records import Plan, of_drafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor

NUM_REQUESTS, MAX_TOKENS = 6, 24


class WholeDrafts(RandomPlans):
    """Every row drafts with the drafter of the longest match, in full length."""

    def plan(self, view) -> Plan:
        view = view.queried(True)
        if not view.drafters:
            return no_drafts(view.num_rows)
        drafter = view.match_lengths.argmax(axis=0)
        return Plan(lengths=of_drafter(view.draft_lengths, drafter), drafter=drafter)

    def cut(self, plan, drafted):
        return drafted.lengths


def make_core(lookup: bool, recycling: bool) -> EngineCore:
    executor = LiveExecutor(
        ModelRunner(as_loaded(tiny_llama(0)), num_slots=3, max_len=128),
        (PromptLookupDrafter(max_draft_tokens=5),) * lookup
        + (RecyclingDrafter(max_draft_tokens=5),) * recycling,
    )
    # Few blocks: some requests are preempted and recomputed.
    return core_of(executor, WholeDrafts(), num_blocks=30)


def generate(core: EngineCore, temperature: float) -> list[list[int]]:
    random = np.random.default_rng(1)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature)
    prompts = [random.integers(0, VOCABULARY, 20).tolist() for _ in range(NUM_REQUESTS)]
    requests = [Request(i, prompt, params, seed=i) for i, prompt in enumerate(prompts)]
    return outputs(run(core, requests))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lookup", [False, True])
def test_the_tokens_stay_the_same_and_a_repeated_request_is_drafted(temperature, lookup):
    expected = generate(make_core(lookup=False, recycling=False), temperature)
    core = make_core(lookup, recycling=True)
    assert generate(core, temperature) == expected
    first, core.controller = core.controller, WholeDrafts()
    assert generate(core, temperature) == expected
    assert core.controller.num_tested > 0
    assert core.controller.num_accepted > first.num_accepted + NUM_REQUESTS * MAX_TOKENS // 5
