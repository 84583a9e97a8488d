"""Divergence of draft and target: of both distributions where they are known, of less where they are not."""

import numpy as np
import pytest
import torch
from markov_engine import TableHead, TableRunner
from torch.nn import functional as F

from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import Policy, plan_of_lengths
from smartspec.control.records import Plan
from smartspec.core.batch import NO_DRAFT, Draft, chain
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.engine.sampling.divergence import divergences

V = 6


def request(**params) -> Request:
    return Request(0, [1], SamplingParams(max_tokens=8, **params), seed=3)


def tables() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return random.dirichlet(np.ones(V), V), random.dirichlet(np.ones(V), V)


def test_of_two_distributions_it_is_kullback_leibler():
    logits, own = torch.randn(4, V, generator=torch.manual_seed(0)), torch.rand(3, V) + 0.1
    own /= own.sum(dim=-1, keepdim=True)
    found = divergences(logits, [request(temperature=0.0)], [chain([0, 1, 2], probs=own)])
    expected = F.kl_div(own.log(), logits[:3].log_softmax(-1), log_target=True, reduction="none").sum(-1)
    np.testing.assert_allclose(found, expected[None].numpy(), atol=1e-6)


def test_a_sampled_request_is_compared_as_it_is_sampled():
    logits = torch.randn(2, V, generator=torch.manual_seed(0))
    same = (logits[:1] / 0.5).softmax(-1)
    found = divergences(logits, [request(temperature=0.5)], [chain([0], probs=same)])
    assert found == pytest.approx(np.zeros((1, 1)), abs=1e-6)
    assert divergences(logits, [request(temperature=1.0)], [chain([0], probs=same)])[0, 0] > 0.05


def test_what_is_known_of_a_head_bounds_the_divergence_from_below():
    logits, own = torch.randn(3, V, generator=torch.manual_seed(2)), torch.rand(2, V)
    own /= own.sum(dim=-1, keepdim=True)
    tokens = own.argmax(dim=-1).numpy()
    whole = divergences(logits, [request(temperature=0.0)], [chain(tokens, probs=own)])
    split = divergences(logits, [request(temperature=0.0)], [chain(tokens, confidence=own.amax(-1).double().numpy())])
    assert (split > 0).all()
    assert (split <= whole + 1e-6).all()


def test_a_model_free_draft_is_sure_and_rows_of_a_tree_follow_their_parents():
    logits = torch.randn(7, V, generator=torch.manual_seed(3))
    tree = Draft(np.array([4, 5, 2], dtype=np.int32), np.array([-1, -1, 1], dtype=np.int32))
    drafts = [NO_DRAFT, tree, chain([0])]
    found = divergences(logits, [request(temperature=0.0)] * 3, drafts)
    log_probs = logits.log_softmax(-1).numpy()
    expected = [-log_probs[1, 4], -log_probs[1, 5], -log_probs[3, 2]]
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)
    assert np.isnan(found[0]).all()
    assert found[2, 0] == pytest.approx(-log_probs[5, 0], rel=1e-5)
    assert np.isnan(found[2, 1:]).all()


class Watcher(Policy):
    """Drafts three tokens and remembers what it is told of their divergence."""

    def __init__(self):
        self.seen: list[np.ndarray] = []

    def plan(self, view, estimates) -> Plan:
        return plan_of_lengths(view, estimates, 3)

    def learn(self, plan, outcome) -> None:
        if outcome.verified.any():
            self.seen.append(outcome.extras["divergence"][0, : outcome.verified[0]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["model", "head", "lookup"])
def test_a_live_engine_measures_it_for_policies_that_need_it(kind, temperature):
    target, draft = tables()
    drafter = {
        "model": lambda: DraftModel(TableRunner(draft), 1, keeps_probs=True),
        "head": lambda: TableHead(draft),
        "lookup": lambda: PromptLookupDrafter(max_draft_tokens=3),
    }[kind]()
    watcher, executor = Watcher(), LiveExecutor(TableRunner(target), (drafter,), measures_divergence=True)
    curves = (CostCurve.linear(1e-3, 1e-5),) if drafter.spec.has_passes else (None,)
    latency = LatencyModel(CostCurve.linear(1e-2, 1e-4), curves)
    scheduler = Scheduler(BlockManager(8, 16, 1), max_batched_tokens=64, max_model_len=120, max_draft_tokens=3)
    core = EngineCore(scheduler, executor, Controller(watcher, 3, latency, drafters=(drafter.spec,), strict=True))
    served = Request(0, [1], SamplingParams(max_tokens=60, temperature=temperature, ignore_eos=True), seed=3)
    core.add_request(served)
    now = executor.clock()
    while core.has_work:
        core.step(now)
    values = np.concatenate(watcher.seen)
    assert np.isfinite(values).all() and (values >= -1e-6).all()
    if kind == "model":
        after = {round(float((p * np.log(p / q)).sum()), 4) for p, q in zip(target, draft, strict=True)}
        assert {round(float(value), 4) for value in values} <= {v + d for v in after for d in (0, 1e-4, -1e-4)}


def test_only_policies_that_need_it_pay_for_it():
    assert EngineConfig(policy="dsde").measures_divergence
    assert not EngineConfig(policy="goodput").measures_divergence
