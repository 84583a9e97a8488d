"""The target as its own drafter from a window of its text: what is emitted is what the target says,
and drafts cost what they are said to cost."""

import numpy as np
import pytest
import torch
from factories import make_view
from markov_model import p_of_fit
from target_drafts import WINDOW, generate, made, model_of_little_attention, prompts, window_core
from tiny_engine import outputs
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from lab.drafters.self_draft import SelfDraft
from smartspec.control import Controller, CostCurve, DrafterSpec, LatencyModel, Plan
from smartspec.control.records import UNLIMITED
from smartspec.core import Batch
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.passes import measure_passes


def test_sampled_tokens_have_the_distribution_of_the_target():
    """The first tokens of 1,000 requests, of which the second and third may be drafted: chi-square
    tests."""
    num, options = 1_000, {"temperature": 0.9, "top_k": 3}
    (prompt,) = prompts(4)[3:]
    core = window_core(num_blocks=3000, num_slots=64, pause=0.0)
    texts = np.array(outputs(generate(core, [prompt] * num, max_tokens=5, **options)))
    assert core.controller.num_accepted > num / 4
    assert core.controller.num_tested - core.controller.num_accepted > num / 20
    for place in (0, 1, 2):
        befores, counts = np.unique(texts[:, :place], axis=0, return_counts=True)
        before = befores[counts.argmax()]
        after = texts[(texts[:, :place] == before).all(axis=1), place]
        whole = torch.tensor([[*prompt, *before.tolist()]])
        logits = model_of_little_attention("eager")(input_ids=whole).logits[0, -1]
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
        view = make_view(1, lag=0, context_tokens=context)
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
        made(f"{NAME}:{window}")


def test_a_window_for_which_no_text_is_long_enough_is_refused():
    assert made(f"{NAME}:21").sparse.window == 21
    with pytest.raises(
        ValueError,
        match=r"a window of 22 .* more than 132 tokens, and the context is 128: .* below 21.3",
    ):
        made(f"{NAME}:22")


@pytest.mark.parametrize(("context", "drafts"), [(1200, False), (8000, True)])
def test_an_untested_one_is_tried_where_it_may_pay(context, drafts):
    """By its price alone, not by exploration: passes of 5 ms and 3 ms more per thousand tokens that
    are read."""
    curve = CostCurve((0.0,), (1e-3,), constant=4e-3, per_context_token=3e-6)
    spec = DrafterSpec("self:256", has_passes=True, context_limit=260)
    controller = Controller(
        "goodput", 8, LatencyModel(curve, (curve,)), drafters=(spec,), strict=True
    )
    plan = controller.plan(make_view(1, lag=0, context_tokens=context))
    assert (plan.lengths > 0).all() == drafts
