"""The target's first layers as its drafter: verification goes on above them, and texts are those
without drafts."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from default_model import default_tokenizer
from fused_models import fused_model
from real_prompts import PROMPTS
from test_draft_model import ShortSighted
from test_self_drafter import Lengths, generate, outputs, prompts
from tiny_models import as_loaded, tiny_llama

from lab.heads.exit_runner import ExitRunner
from lab.heads.exits import Exit
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.engine.attention.ragged import ATTENTION_NAME, Segment
from smartspec.engine.drafting.source import DrafterSource
from smartspec.engine.models import model_runner
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.drafter_kinds import prepare_drafter
from smartspec.engine.runtime.executor import LiveExecutor


def make_model(attention: str = ATTENTION_NAME):
    """Whose upper layer adds little, as training with early exits makes it, so that drafts are
    right at times."""
    model = tiny_llama(0, attention)
    for linear in (model.model.layers[-1].self_attn.o_proj, model.model.layers[-1].mlp.down_proj):
        linear.weight *= 0.3
    return model


def make_core(num_blocks: int = 100, seed: int = 0, pause: float = 0.2) -> EngineCore:
    target = ModelRunner(as_loaded(make_model()), num_slots=4, max_len=128)
    executor = LiveExecutor(target, (Exit(target, target.loaded.num_layers - 1),))
    scheduler = Scheduler(
        BlockManager(num_blocks, 4, 4), max_batched_tokens=16, max_model_len=128, max_draft_tokens=5
    )
    return EngineCore(scheduler, executor, Lengths(seed, pause))


@pytest.fixture(params=["the kernels of this machine", "torch"])
def attention(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(model_runner, "max_tokens_per_tile", lambda *model: 0)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("num_blocks", [100, 30])
def test_greedy_texts_are_those_without_drafts(num_blocks):
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
        assert (
            outputs(again) == expected and sum(request.num_cached_tokens for request in again) > 60
        )


def test_drafts_of_a_grammar_that_cannot_be_seen_past_end_there():
    plain, core = (make_core(pause=pause) for pause in (1.0, 0.2))
    found, expected = (
        generate(c, prompts(5), temperature=0.0, grammar=ShortSighted()) for c in (core, plain)
    )
    assert outputs(found) == outputs(expected) and core.controller.num_accepted > 0


def test_the_kv_of_the_text_is_that_without_drafts():
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


@pytest.fixture
def runner() -> ExitRunner:
    model = fused_model("llama")
    if not fuse_layers(model):
        pytest.skip("our kernels do not run here, and without them nothing is kept")
    return ExitRunner.of(
        ModelRunner(
            replace(as_loaded(model), fused_pass=fused_pass(model)), num_slots=3, max_len=64
        )
    )


def test_verification_goes_on_where_draft_passes_ended(runner, monkeypatch):
    """The first layers are fed the last draft token, a request without a draft, and a prompt; the
    others all tokens. Logits have the same bits as in a pass through all layers."""
    texts = [
        np.array(text, dtype=np.int32) for text in ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9])
    ]
    whole = [Segment(slot, 0, text, len(text)) for slot, text in enumerate(texts)]
    expected = runner.forward(whole)
    before = [replace(whole[0], token_ids=texts[0][:2]), replace(whole[1], token_ids=texts[1][:2])]
    runner.forward(before)
    runner.apply(())
    for place in (2, 3):
        runner.forward_exit([Segment(0, place, texts[0][place : place + 1], 1)], 1)
    fed = []
    layers = runner._fused.layers

    def noted(hidden, plan, begin, end):
        fed.append((begin, end, plan.num_tokens))
        return layers(hidden, plan, begin, end)

    monkeypatch.setattr(runner._fused, "layers", noted)
    starts = zip(whole, texts, (2, 2, 0), strict=True)
    after = [
        replace(s, start=n, token_ids=text[n:], num_logits=len(text) - n) for s, text, n in starts
    ]
    logits = runner.forward(after)
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


def made(name: str) -> Exit:
    target = as_loaded(tiny_llama(0))
    source = DrafterSource(
        name, "tiny", target, as_loaded, num_slots=1, max_len=64, max_draft_tokens=4
    )
    return prepare_drafter(source).make(ModelRunner(target, num_slots=1, max_len=64))


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


@pytest.mark.usefixtures("loaded_once")
def test_the_real_model_keeps_its_texts():
    prompt = default_tokenizer().encode("\n\n".join(PROMPTS))[:60]
    found, steps = {}, []
    for policy in ("off", "fixed:3"):
        engine = build_engine(
            EngineConfig(policy=policy, drafters=(f"{EXIT}:22",), max_batch=2, strict=True)
        )
        learn = engine.core.controller.learn
        engine.core.controller.learn = lambda plan, o, learn=learn: (
            steps.append(o),
            learn(plan, o),
        )
        found[policy] = outputs(
            generate(engine.core, [prompt, prompt[:40]], max_tokens=30, temperature=0.0)
        )
    assert found["off"] == found["fixed:3"]
    assert sum(o.tested.sum() for o in steps) > 10
