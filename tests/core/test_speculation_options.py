"""Options of speculation reach the controller's view; free KV bounds its drafts."""

import fakes
import numpy as np
import pytest
from drafter_cases import LOOKUP, found
from factories import make_outcome, make_view
from fakes import RandomController, make_request

from smartspec.control import BatchView, ClassIds, Plan
from smartspec.control.acceptance.effects import NUM_CLASSES
from smartspec.control.acceptance.estimator import AcceptanceEstimator
from smartspec.control.records import UNLIMITED
from smartspec.core.engine_core import EngineCore
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions

K = 5


class ViewKeeper(RandomController):
    """Keeps the views it plans for."""

    def __init__(self):
        super().__init__()
        self.views: list[BatchView] = []

    def plan(self, view):
        plan = super().plan(view)
        self.views.append(plan.view)
        return plan


def make_core(**limits) -> EngineCore:
    return fakes.make_core(ViewKeeper(), budget=32, **limits)


def serve(core: EngineCore, *options: SpeculationOptions, max_tokens: int = 12) -> list[BatchView]:
    """Serve one request per options and return the views with all of them decoding."""
    requests = [
        make_request(i, [i + 1, 2], max_tokens, speculation=option)
        for i, option in enumerate(options)
    ]
    fakes.serve(core, requests)
    return [view for view in core.controller.views if view.num_rows == len(options)]


def test_without_options_requests_are_equal():
    view = serve(make_core(), NO_OPTIONS, NO_OPTIONS)[0]
    assert view.weights.tolist() == [1.0, 1.0] and view.class_ids.tolist() == [0, 0]
    assert not view.extras and view.draft_token_budget == UNLIMITED


def test_wishes_reach_the_view_row_by_row():
    wanted = SpeculationOptions(
        workload_class="code", max_draft_tokens=2, weight=2.5, tpot_target_seconds=0.05
    )
    views = serve(
        make_core(), NO_OPTIONS, wanted, SpeculationOptions("chat"), SpeculationOptions("code")
    )
    assert views
    for view in views:
        rows = dict(zip(view.request_ids.tolist(), range(4), strict=True))
        order = [rows[i] for i in range(4)]
        assert view.class_ids[order].tolist() == [0, 1, 2, 1]
        assert view.weights[order].tolist() == [1.0, 2.5, 1.0, 1.0]
        assert view.extras["tpot_targets"][order].tolist() == [np.inf, 0.05, np.inf, np.inf]
        assert view.row_caps[order[1]] <= 2 and view.draft_lengths[0, order[1]] <= 2
    assert max(int(view.row_caps.max()) for view in views) == K


@pytest.mark.parametrize("limit", [0, 10**30])
def test_extreme_limits(limit):
    core = make_core()
    views = serve(core, SpeculationOptions(max_draft_tokens=limit))
    assert max(int(view.row_caps.max()) for view in views) == min(limit, K)
    drafted = sum(int(outcome.drafted.sum()) for outcome in core.controller.outcomes)
    assert (drafted == 0) == (limit == 0)


def test_free_kv_bounds_drafts_when_it_is_scarce():
    core = make_core(num_blocks=8)
    serve(core, *[NO_OPTIONS] * 3, max_tokens=20)
    views = [view for view in core.controller.views if view.num_rows and not view.num_prefills]
    scarce = [view for view in views if view.draft_token_budget < UNLIMITED]
    assert len(views) > len(scarce) > 0
    for view in scarce:
        assert view.draft_token_budget == 8 * 4 - (view.context_tokens + 1).sum()
        assert (view.row_caps >= 0).all() and (view.row_caps <= view.draft_token_budget).all()
    assert min(view.draft_token_budget for view in scarce) < 2 * K


class OneTokenDrafts(ViewKeeper):
    """Plans one draft token for every request."""

    def plan(self, view):
        view = view.queried(True)
        self.views.append(view)
        return Plan(np.minimum(view.row_caps, 1), np.zeros(view.num_rows, dtype=int))


def test_a_step_full_of_prefill_has_room_for_a_few_drafts_and_the_next_chunk_leaves_it():
    core = make_core()
    core.controller = OneTokenDrafts()
    core.add_request(make_request(0, [1, 2], max_tokens=20))
    core.step(0.0)
    core.add_request(make_request(1, list(range(3, 60)), max_tokens=2))
    full, next_full = (core.step(1.0 + i) and core.controller.views[-1] for i in range(2))
    assert full.ordinary_tokens == 32, "the limit, as no drafts were known before"
    assert full.draft_token_budget == 32 // 8
    assert next_full.prefill_tokens == 57 - 31 and next_full.draft_token_budget == 32 - 27
    core.add_request(make_request(2, list(range(100, 150)), max_tokens=2))
    core.step(3.0)
    assert core.controller.views[-1].ordinary_tokens == 32 - 1, (
        "one draft token in the mixed step before"
    )


def test_drafts_that_were_planned_and_not_made_need_no_room_beside_prefill():
    core = make_core()
    core.controller = OneTokenDrafts()
    core.controller.cut = lambda plan, drafted: np.zeros_like(drafted.lengths)
    core.add_request(make_request(0, [1, 2], max_tokens=20))
    core.step(0.0)
    for request_id in (1, 2):
        prompt = list(range(100 * request_id, 100 * request_id + 60))
        core.add_request(make_request(request_id, prompt, max_tokens=2))
    for now in range(1, 3):
        core.step(float(now))
    assert [view.ordinary_tokens for view in core.controller.views[-2:]] == [32, 32]


def test_class_numbers_are_bounded():
    ids = ClassIds()
    assert [ids.of(f"class {i}") for i in range(1, NUM_CLASSES)] == list(range(1, NUM_CLASSES))
    assert ids.of(None) == 0
    assert ids.of("class 1") == 1, "now class 2 is the one not used for longest"
    assert [ids.of(name) for name in ("one more", "class 1", "class 3", "class 2")] == [2, 1, 3, 4]


def test_a_client_that_names_many_classes_takes_the_numbers_of_none_of_another():
    ids = ClassIds()
    own = [ids.of(name, "a") for name in ("chat", "code")]
    for number in range(3 * NUM_CLASSES):
        ids.of(f"class {number}", "b")
    assert [ids.of(name, "a") for name in ("chat", "code")] == own
    assert len(ids._client_of) == len(ids._ids) == NUM_CLASSES - 1


def test_what_is_learned_of_the_last_class_is_not_said_of_requests_without_one():
    """As many classes as there are numbers: the last to get one has a memory of its own."""
    ids = ClassIds()
    last = max(ids.of(f"class {i}") for i in range(1, NUM_CLASSES))
    acceptance, none = AcceptanceEstimator(2, (LOOKUP,)), np.zeros(1, dtype=np.int64)

    def view(request_id, class_id):
        drafters = (found(none + 2, none + 4),)
        return make_view(none + request_id, drafters=drafters, class_ids=none + class_id)

    for step in range(40):
        taught, accepted = (view(step, last), none) if step % 2 else (view(step, 0), none + 2)
        acceptance.observe([make_outcome(taught, Plan(none + 2, none), accepted=accepted)])
    of_class, of_none = (
        acceptance.survival(view(100, class_id))[0, 0, 0] for class_id in (last, 0)
    )
    assert of_class < 0.95 * of_none


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workload_class": ""}, "workload_class must have 1 to 64 characters"),
        ({"workload_class": "x" * 65}, "workload_class must have 1 to 64 characters"),
        ({"max_draft_tokens": -1}, "max_draft_tokens must be at least 0, got -1"),
        ({"weight": 5e-324}, r"weight must be in \[0.01, 100\], got 5e-324"),
        ({"weight": float("nan")}, "weight must be in .* got nan"),
        ({"weight": 101.0}, "got 101"),
        ({"tpot_target_seconds": 0.0}, "tpot_target_seconds must be in"),
        ({"tpot_target_seconds": float("inf")}, "tpot_target_seconds must be in .* got inf"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        SpeculationOptions(**options)
