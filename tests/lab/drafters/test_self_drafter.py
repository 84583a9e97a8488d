"""The target as its own drafter: the KV it writes is never text, and what is emitted is what the
target says."""

import time

import numpy as np
import pytest
import torch
from default_model import default_tokenizer
from markov_model import p_of_fit
from real_prompts import PROMPTS
from test_draft_model import ModelController, ShortSighted
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from lab.drafters.self_draft import SelfDraft
from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import UNLIMITED, BatchView, DrafterSpec, DrafterView, Plan
from smartspec.core.batch import Batch
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.engine.attention.ragged import ATTENTION_NAME
from smartspec.engine.drafting.source import DrafterSource
from smartspec.engine.models import model_runner
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.drafter_kinds import prepare_drafter
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.engine.runtime.passes import measure_passes

WINDOW = 6  # of texts of more than 36 tokens


class Lengths(ModelController):
    """Drafts of random lengths, of which a random part is verified."""

    def plan(self, view) -> Plan:
        view = view.queried(True)
        lengths = self.random.integers(0, view.draft_lengths[0] + 1) * (
            self.random.random() >= self.pause
        )
        return Plan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int))

    def cut(self, plan, drafted):
        return self.random.integers(0, drafted.lengths + 1)


def make_model(attention: str = ATTENTION_NAME):
    """In which attention adds little, so that drafts are right at times."""
    model = tiny_llama(0, attention)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= 0.02
    return model


def make_core(
    num_blocks: int = 100, seed: int = 0, pause: float = 0.2, num_slots: int = 4
) -> EngineCore:
    target = ModelRunner(as_loaded(make_model()), num_slots=num_slots, max_len=128)
    executor = LiveExecutor(target, (SelfDraft(target, WINDOW),))
    blocks = BlockManager(num_blocks, 4, num_slots)
    scheduler = Scheduler(
        blocks, max_batched_tokens=4 * num_slots, max_model_len=128, max_draft_tokens=5
    )
    return EngineCore(scheduler, executor, Lengths(seed, pause))


def prompts(num: int) -> list[list[int]]:
    """Some of which begin alike and one of which is short."""
    random = np.random.default_rng(5)
    shared = random.integers(0, VOCABULARY, 20).tolist()
    return [shared + random.integers(0, VOCABULARY, 7 * i).tolist() for i in range(num)]


def generate(
    core: EngineCore, of: list[list[int]], max_tokens: int = 30, grammar=None, **params
) -> list[Request]:
    options = SamplingParams(max_tokens=max_tokens, **params)
    requests = [Request(i, prompt, options, seed=i, grammar=grammar) for i, prompt in enumerate(of)]
    for request in requests:
        core.add_request(request)
    while core.has_work:
        core.step(time.monotonic())
    return requests


def outputs(requests: list[Request]) -> list[list[int]]:
    return [request.output_token_ids.tolist() for request in requests]


@pytest.fixture(params=["the kernels of this machine", "torch"])
def attention(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(model_runner, "max_tokens_per_tile", lambda *model: 0)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("num_blocks", [100, 30])
def test_greedy_texts_are_those_without_drafts(num_blocks):
    """Also of preempted requests, and of later ones that find their prompts in the prefix cache."""
    plain = make_core(pause=1.0)
    expected = outputs(generate(plain, prompts(7), temperature=0.0))
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
    """After every step, to the bit: verification has written again what drafts wrote there."""
    drafting, plain = make_core(num_slots=1), make_core(num_slots=1, pause=1.0)
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


def test_sampled_tokens_have_the_distribution_of_the_target():
    """The first tokens of 1,000 requests, of which the second and third may be drafted: chi-square
    tests."""
    num, options = 1_000, {"temperature": 0.9, "top_k": 3}
    (prompt,) = prompts(4)[3:]
    core = make_core(num_blocks=3000, num_slots=64, pause=0.0)
    texts = np.array(outputs(generate(core, [prompt] * num, max_tokens=5, **options)))
    assert core.controller.num_accepted > num / 4
    assert core.controller.num_tested - core.controller.num_accepted > num / 20
    for place in (0, 1, 2):
        befores, counts = np.unique(texts[:, :place], axis=0, return_counts=True)
        before = befores[counts.argmax()]
        after = texts[(texts[:, :place] == before).all(axis=1), place]
        whole = torch.tensor([[*prompt, *before.tolist()]])
        logits = make_model("eager")(input_ids=whole).logits[0, -1]
        best = logits.topk(3)
        probs = np.zeros(VOCABULARY)
        probs[best.indices.numpy()] = (best.values / 0.9).softmax(dim=-1).numpy()
        assert p_of_fit(np.bincount(after, minlength=VOCABULARY), probs) > 1e-4


def test_short_texts_are_not_drafted_for():
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=2, max_len=128)
    drafter = SelfDraft(target, WINDOW)
    requests = tuple(Request(i, [1] * 60, SamplingParams(), seed=0) for i in range(2))
    requests[0].num_computed_tokens, requests[1].num_computed_tokens = 36, 37
    view = drafter.view(Batch(decoding=requests))
    assert view.lengths.tolist() == [0, UNLIMITED] and not view.lag.any()


def test_a_pass_is_profiled_as_it_will_be():
    """With no more context than a pass reads, of which all is memory that was written."""
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=2, max_len=128)
    drafter, fed = SelfDraft(target, WINDOW), []
    target.forward = lambda segments: fed.extend(segments) or torch.zeros(1, VOCABULARY)
    limits = {"max_len": 2000, "max_batch": 2, "kv_tokens": 4000, "max_seconds": 1e3}
    samples = measure_passes(drafter, **limits, max_context=drafter.spec.context_limit)
    assert {segment.sparse for segment in fed} == {drafter.sparse}
    assert max(segment.start for segment in fed) == WINDOW + 4
    assert len({(s.fed_tokens, s.context_tokens, s.rows) for s in samples}) == len(samples)


def test_a_draft_pass_takes_no_longer_after_longer_texts():
    spec = SelfDraft(ModelRunner(as_loaded(tiny_llama(0)), num_slots=1, max_len=128), WINDOW).spec
    curve = CostCurve(
        (0.0,), (1e-3,), constant=5e-3, per_context_token=3e-6, per_attended_token=1e-6
    )
    latency = LatencyModel(curve, (curve,))
    latency.use_drafters((spec,))

    def seconds(context: int) -> tuple[float, float]:
        views = (DrafterView(np.array([UNLIMITED])),)
        view = BatchView(np.zeros(1, dtype=int), np.array([context]), np.array([8]), drafters=views)
        predicted = latency.predict(view, Plan(np.array([4]), np.array([0])), np.array([4]))
        return predicted.draft, predicted.target

    assert seconds(8000)[0] == seconds(1000)[0] == pytest.approx(4 * (6e-3 + 4e-6 * 10), rel=1e-2)
    assert seconds(8000)[1] > seconds(1000)[1] + 0.05


NAME = "lab.drafters.self_draft:SelfDraft"


def test_its_earlier_name_is_refused_with_the_new_one():
    with pytest.raises(
        ValueError, match=rf"'self:256' is called {NAME}:256 and is in the repository's lab"
    ):
        EngineConfig(drafters=("self:256",))


@pytest.mark.parametrize("window", ["0", "-3", "2.5"])
def test_a_window_that_is_no_positive_number_is_refused(window):
    with pytest.raises(
        ValueError, match=f"must be a positive number of tokens, as in SelfDraft:256, got {window}"
    ):
        prepared(window)


def test_a_window_for_which_no_text_is_long_enough_is_refused():
    assert prepared("21").sparse.window == 21
    with pytest.raises(
        ValueError,
        match=r"a window of 22 .* more than 132 tokens, and the context is 128: .* below 21.3",
    ):
        prepared("22")


def prepared(window: str) -> SelfDraft:
    sizes = {"num_slots": 1, "max_len": 128, "max_draft_tokens": 4}
    source = DrafterSource(
        f"{NAME}:{window}", "tiny", as_loaded(tiny_llama(0)), load_model=as_loaded, **sizes
    )
    return prepare_drafter(source).make(ModelRunner(source.target, num_slots=1, max_len=128))


@pytest.mark.parametrize(("context", "drafts"), [(1200, False), (8000, True)])
def test_an_untested_one_is_tried_where_it_may_pay(context, drafts):
    """By its price alone, not by exploration: passes of 5 ms and 3 ms more per thousand tokens that
    are read."""
    curve = CostCurve((0.0,), (1e-3,), constant=4e-3, per_context_token=3e-6)
    spec = DrafterSpec("self:256", has_passes=True, context_limit=260)
    controller = Controller(
        "goodput", 8, LatencyModel(curve, (curve,)), drafters=(spec,), strict=True
    )
    views = (DrafterView(np.array([UNLIMITED])),)
    plan = controller.plan(
        BatchView(np.zeros(1, dtype=int), np.array([context]), np.array([8]), drafters=views)
    )
    assert (plan.lengths > 0).all() == drafts


@pytest.mark.usefixtures("loaded_once")
def test_the_real_model_drafts_for_itself():
    """Greedy texts are those without drafts."""
    prompt = default_tokenizer().encode("\n\n".join(PROMPTS))[:200]
    found, tested = {}, []
    for policy in ("off", "fixed:3"):
        engine = build_engine(
            EngineConfig(policy=policy, drafters=(f"{NAME}:32",), max_batch=2, strict=True)
        )
        learn = engine.core.controller.learn
        engine.core.controller.learn = lambda plan, o, learn=learn: (
            tested.append(o),
            learn(plan, o),
        )
        found[policy] = outputs(
            generate(engine.core, [prompt, prompt[:180]], max_tokens=30, temperature=0.0)
        )
    assert found["off"] == found["fixed:3"]
    # most are right
    assert sum(o.accepted.sum() for o in tested) > 0.2 * sum(o.tested.sum() for o in tested) > 4
