"""The target as its own drafter, by its first layers or from a window of its text: the KV that
drafts wrote is never text, and texts are those without drafts."""

import time

import pytest
import torch
from default_model import default_tokenizer
from real_prompts import PROMPTS
from target_drafts import exit_core, generate, prompts, window_core
from test_draft_model import ShortSighted
from tiny_engine import outputs

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig

OF_EACH = pytest.mark.parametrize("make_core", [exit_core, window_core])


@OF_EACH
@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("num_blocks", [100, 30])
def test_greedy_texts_are_those_without_drafts(make_core, num_blocks):
    """Also of preempted requests, and of later ones that find their prompts in the prefix cache."""
    expected = outputs(generate(make_core(pause=1.0), prompts(7), temperature=0.0))
    for seed in range(2):
        core = make_core(num_blocks, seed)
        requests = generate(core, prompts(7), temperature=0.0)
        assert outputs(requests) == expected
        assert any(request.num_preemptions for request in requests) == (num_blocks == 30)
        assert 20 < core.controller.num_accepted < core.controller.num_tested
        core.controller.pause = 1.0

        again = generate(core, prompts(7), temperature=0.0)
        assert outputs(again) == expected
        assert sum(request.num_cached_tokens for request in again) > 60


@OF_EACH
def test_drafts_of_a_grammar_that_cannot_be_seen_past_end_there(make_core):
    plain, core = (make_core(pause=pause) for pause in (1.0, 0.2))
    found, expected = (
        generate(c, prompts(5), temperature=0.0, grammar=ShortSighted()) for c in (core, plain)
    )
    assert outputs(found) == outputs(expected) and core.controller.num_accepted > 0


@OF_EACH
def test_the_kv_of_the_text_is_that_without_drafts(make_core):
    """After every step: of all layers, those that draft passes wrote and those that verification
    did."""
    drafting, plain = make_core(), make_core(pause=1.0)
    (whole,) = generate(plain, prompts(4)[3:], temperature=0.0)
    expected = plain.executor.runner.cache
    request = Request(0, prompts(4)[3], SamplingParams(max_tokens=30, temperature=0.0), seed=0)
    drafting.add_request(request)
    while drafting.has_work:
        drafting.step(time.monotonic())
        cache, num_computed = drafting.executor.runner.cache, request.num_computed_tokens
        for ours, theirs in zip(
            (*cache.keys, *cache.values), (*expected.keys, *expected.values), strict=True
        ):
            torch.testing.assert_close(
                ours[0, :, :num_computed], theirs[0, :, :num_computed], rtol=1e-4, atol=1e-4
            )
    assert request.output_token_ids.tolist() == whole.output_token_ids.tolist()
    assert drafting.controller.num_accepted > 3


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(
    ("drafter", "lengths", "least_accepted"),
    [
        ("lab.heads.exits:Exit:22", (60, 40), 0.0),
        ("lab.drafters.self_draft:SelfDraft:32", (200, 180), 0.2),  # most are right
    ],
)
def test_the_real_model_keeps_its_texts(drafter, lengths, least_accepted):
    """least_accepted: share of the tokens that were tested."""
    prompt = default_tokenizer().encode("\n\n".join(PROMPTS))
    found, steps = {}, []
    for policy in ("off", "fixed:3"):
        engine = build_engine(
            EngineConfig(policy=policy, drafters=(drafter,), max_batch=2, strict=True)
        )
        learn = engine.core.controller.learn
        engine.core.controller.learn = lambda plan, outcome, learn=learn: (
            steps.append(outcome),
            learn(plan, outcome),
        )
        requests = generate(
            engine.core, [prompt[:length] for length in lengths], max_tokens=30, temperature=0.0
        )
        found[policy] = outputs(requests)
    assert found["off"] == found["fixed:3"]
    num_tested = sum(outcome.tested.sum() for outcome in steps)
    assert num_tested > 20
    assert sum(outcome.accepted.sum() for outcome in steps) > least_accepted * num_tested
