"""Heads of other kinds than EAGLE-3, on tiny models: drafts as in plain torch, outputs as in plain
decoding."""

import itertools

import numpy as np
import pytest
import torch
from compiled import attend_in_torch
from head_cases import (
    DEPTH,
    EAGLE,
    MEDUSA,
    MEDUSA_OUTPUTS,
    OF_EAGLE3,
    P_EAGLE,
    REDRAFTER,
    HeadCase,
    make_core,
)
from test_head_drafter import let_some_be_right, noted_drafts
from tiny_engine import generate, outputs
from tiny_models import VOCABULARY

from lab.heads.product import product_tree
from smartspec.core import Batch
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.head import native_head
from smartspec.engine.drafting.head import runner as head_runner_module

CASES = [EAGLE, P_EAGLE, MEDUSA, MEDUSA_OUTPUTS, REDRAFTER]


@pytest.fixture(params=CASES, ids=str)
def case(request) -> HeadCase:
    return request.param


@pytest.fixture(params=["the kernels of this machine", "torch", "small passes"])
def attention(request, monkeypatch):
    if request.param == "small passes":
        # less than what a draft needs of its pass
        monkeypatch.setattr(head_runner_module, "MAX_CHUNK", DEPTH - 1)
        monkeypatch.setattr(native_head, "MIN_ROWS", 2)
    if request.param == "torch":
        attend_in_torch(monkeypatch)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_width", [1, 6])
def test_outputs_are_those_of_plain_decoding(case, temperature, max_width):
    """Other shapes in every step, through preemption, prefix hits and catch-up."""
    expected = outputs(generate(make_core(case, pause=1.0, num_blocks=60), temperature))
    core = make_core(case, max_width=max_width, max_draft_tokens=5 if max_width == 1 else 12)
    if max_width > 1:
        let_some_be_right(core, expected)
    requests = generate(core, temperature)
    assert outputs(requests) == expected
    assert core.controller.num_tested > core.controller.num_accepted
    assert any(r.num_preemptions for r in requests) and any(r.num_cached_tokens for r in requests)
    if max_width > 1:
        assert core.controller.num_trees > 10 and core.controller.num_accepted > 20


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("case", [*OF_EAGLE3, *CASES], ids=str)
@pytest.mark.parametrize("max_width", [1, 4])
def test_drafts_are_those_of_plain_torch_or_of_the_code_that_trains_them(case, max_width):
    """After catch-ups, rejections, preemptions and prefixes taken over from other slots; every node
    is as likely as it should be after its path, and no better one was left out of the chain."""
    max_draft_tokens, head = 5 if max_width == 1 else 12, case.make()
    core = make_core(case, pause=0.2, max_width=max_width, max_draft_tokens=max_draft_tokens)
    drafts = noted_drafts(core)
    requests = generate(core)
    assert any(r.num_cached_tokens for r in requests) and any(r.num_preemptions for r in requests)
    assert len(drafts) > 40
    ids = head.target_ids.tolist()
    trees = [pair for pair in drafts if not pair[1].is_chain]
    chosen = drafts[::9] if max_width == 1 else trees[::4]
    assert len(chosen) > 4
    for text, draft in chosen:
        for node, path in enumerate(draft.paths[1:]):
            chances = case.logits(head, text, list(path[:-1])).detach().softmax(-1)
            assert draft.confidence[node] == pytest.approx(
                float(chances[ids.index(path[-1])]), rel=2e-3
            )
            if max_width == 1:
                assert path[-1] == ids[int(chances.argmax())]


def test_one_pass_makes_a_whole_draft(case, monkeypatch):
    if not case.is_one_pass:
        pytest.skip("it makes one token a pass")
    core = make_core(case, pause=0.0)
    (drafter,) = core.executor.drafters
    assert drafter.spec.one_pass_depth == DEPTH
    name = "_pass" if hasattr(drafter.runner, "_pass") else "forward"
    drafts, calls, run = noted_drafts(core), [], getattr(drafter.runner, name)

    def counted(segments, *rest):
        calls.append(len(segments))
        return run(segments, *rest)

    monkeypatch.setattr(drafter.runner, name, counted)
    generate(core)
    assert sum(calls) == len(drafts) and max(len(draft) for _, draft in drafts) == DEPTH


@pytest.mark.usefixtures("attention")
def test_features_without_numbers_make_drafts_that_can_be_verified(case):
    core = make_core(case)
    (drafter,) = core.executor.drafters
    request = Request(0, [1, 2, 3], SamplingParams(max_tokens=9), seed=0)
    request.slot, request.num_computed_tokens = 0, 2
    drafter._num_known[0] = 2
    runner = drafter.runner
    known = runner.features[0, :2] if hasattr(runner, "features") else runner.hidden[0]
    known.fill_(torch.nan)
    (draft,) = drafter.draft_trees(Batch(decoding=(request,)), np.array([6]), np.array([3]), 3)
    assert (draft.parents < np.arange(len(draft))).all() and len(draft) > 0
    assert ((draft.confidence >= 0.0) & (draft.confidence <= 1.0)).all()
    assert ((draft.token_ids >= 0) & (draft.token_ids < VOCABULARY)).all()


def test_the_best_tree_of_a_product_is_found():
    """As by trying all paths."""
    random = np.random.default_rng(0)
    chances = -np.sort(-random.dirichlet(np.full(4, 0.5), 3))
    draft = product_tree([[0, 1, 2, 3]] * 3, chances.tolist(), 9)
    paths = [path for depth in (1, 2, 3) for path in itertools.product(range(4), repeat=depth)]
    worth = {path: np.prod(chances[np.arange(len(path)), path]) for path in paths}
    best = sorted(worth.values(), reverse=True)[:9]
    assert [worth[path] for path in draft.paths[1:]] == pytest.approx(best)
    assert product_tree([[5], [6]], [[0.5], [0.4]], 9).is_chain
