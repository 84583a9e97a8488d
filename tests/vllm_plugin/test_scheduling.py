"""Whatever is decided, every request gets its own text; and decisions are good ones."""

import logging
import sys
from functools import wraps
from itertools import chain
from types import ModuleType

import pytest
from toy_engine import ToyEngine, failing, make_config, run, start
from vllm.schedulers import AsyncScheduler, ModelRunnerOutput
from vllm.schedulers import Scheduler as StockScheduler

from smartspec.control import BatchView, Controller
from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.speculation.learner import Learner
from smartspec.vllm_plugin.speculation.speculation import Speculation

CASES = {
    "ngram": {"method": "ngram"},
    "draft model": {"method": "draft_model"},
    "draft model, asynchronous": {"method": "draft_model", "is_async": True},
}


LOCKSTEP = {"method": "draft_model", "data_parallel_size": 2, "is_moe": True}
FIXED_DRAFTS = {
    "ranks in lockstep": LOCKSTEP,
    "a block": {"method": "eagle3", "parallel_drafting": True},
}


@pytest.mark.parametrize("case", FIXED_DRAFTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_drafts_of_a_fixed_length_are_made_whole_and_verified_as_far_as_pays(
    is_async, case, tmp_path
):
    """Another rank makes as many draft passes, whatever this one decides; a block is made in one
    pass."""
    means = []
    for acceptance in (0.05, 0.9):
        engine = run(
            make_config(tmp_path, is_async=is_async, **FIXED_DRAFTS[case]), acceptance=acceptance
        )
        assert set(engine.draft_lengths) == {engine.scheduler.num_spec_tokens}
        late = engine.verified_lengths[len(engine.verified_lengths) // 2 :]
        means.append(sum(map(sum, late)) / len(late))
    assert 0 < 3 * means[0] < means[1]


@pytest.mark.parametrize("case", CASES)
def test_the_next_step_waits_for_no_lesson_and_for_no_decision_that_needs_no_drafts(
    case, tmp_path, monkeypatch
):
    """That is done while a step runs, and at once where there is none."""
    waited_for, is_running = {"learn": [], "plan": []}, [False]
    bitmask, update = StockScheduler.get_grammar_bitmask, StockScheduler.update_from_output

    def noted(name):
        method = getattr(Controller, name)

        def call(controller, *arguments):
            waited_for[name].append(
                not is_running[0] and engine.scheduler.has_unfinished_requests()
            )
            return method(controller, *arguments)

        return call

    @wraps(bitmask)
    def hand_over(*arguments):
        is_running[0] = True
        return bitmask(*arguments)

    @wraps(update)
    def finish(*arguments):
        is_running[0] = False
        return update(*arguments)

    for name in waited_for:
        monkeypatch.setattr(Controller, name, noted(name))
    monkeypatch.setattr(StockScheduler, "get_grammar_bitmask", hand_over)
    monkeypatch.setattr(StockScheduler, "update_from_output", finish)
    config = make_config(tmp_path, **CASES[case])
    engine = start(config)
    engine.serve(*range(6), max_tokens=200)
    assert len(waited_for["learn"]) > 20 and not any(waited_for["learn"])
    assert len(waited_for["plan"]) > 20 and any(waited_for["plan"]) != engine.has_passes


@pytest.mark.parametrize("is_async", [False, True])
def test_the_controller_learns_of_the_requests_that_are_in_a_step(is_async, tmp_path, monkeypatch):
    """A decision is made for the step after the one that runs, at whose end requests may have
    ended."""
    known, num_dropped, learn = [], [0], Learner.learn

    def note(self, step, tokens):
        num_decided = 0 if step.decision is None else step.decision.view.num_rows
        learn(self, step, tokens)
        if step.decision is not None:
            known.append(set(step.decision.names) <= set(step.output.num_scheduled_tokens))
            num_dropped[0] += num_decided - step.decision.view.num_rows

    monkeypatch.setattr(Learner, "learn", note)
    config = make_config(
        tmp_path, method="draft_model", is_async=is_async, settings={"policy": "goodput"}
    )
    engine = start(config)
    for number in range(40):
        engine.add(number, prompt_tokens=20, max_tokens=10 + 7 * number % 19)
    engine.run()
    assert len(known) > 20 and all(known) and num_dropped[0]
    controller = engine.scheduler.speculation.learner.controller
    assert not controller.num_errors and not controller.controller.num_ignored


@pytest.mark.parametrize("case", CASES)
def test_good_drafts_are_used(case, tmp_path):
    engine = run(make_config(tmp_path, **CASES[case]), acceptance=0.9, max_tokens=300)
    assert isinstance(engine.scheduler, AsyncScheduler) == CASES[case].get("is_async", False)
    late = list(chain.from_iterable(engine.verified_lengths[-60:-10]))
    assert sum(late) / len(late) > 2.5
    steps = len(engine.verified_lengths)
    assert steps < 180, f"{steps} steps for 300 tokens"


@pytest.mark.parametrize("case", CASES)
def test_useless_drafts_are_not(case, tmp_path):
    engine = run(make_config(tmp_path, **CASES[case]), acceptance=0.02, max_tokens=300)
    verified = list(chain.from_iterable(engine.verified_lengths[80:]))
    assert sum(verified) / (6 * 220) < 0.15
    if CASES[case]["method"] == "draft_model":
        assert sum(length > 0 for length in engine.draft_lengths[80:]) < 0.15 * len(
            engine.draft_lengths[80:]
        )


@pytest.mark.parametrize(
    ("policy", "case", "longest"),
    [
        ("off", "ngram", 0),
        ("fixed:3", "ngram", 3),
        ("uniform:1,3", "ngram", 4),
        # placeholders are shared by all requests: they are never cut in place
        ("fixed:2", "draft model, asynchronous", 2),
    ],
)
def test_policies(policy, case, longest, tmp_path):
    engine = run(make_config(tmp_path, settings={"policy": policy}, **CASES[case]))
    assert set(chain.from_iterable(engine.verified_lengths)) <= {*range(1, longest + 1)}


@pytest.fixture
def views(monkeypatch) -> list[BatchView]:
    """The batches that are planned."""
    views, plan = [], Controller.plan
    monkeypatch.setattr(
        Controller, "plan", lambda self, view: views.append(view) or plan(self, view)
    )
    return views


def test_callers_may_request_shorter_drafts_and_name_a_class_and_a_weight(tmp_path, views):
    engine = start(make_config(tmp_path, settings={"policy": "fixed:4"}), acceptance=0.9)
    options = [
        {},
        {"smartspec_class": "code", "smartspec_max_draft_tokens": 0},
        {"smartspec_class": "code", "smartspec_weight": 3, "smartspec_max_draft_tokens": 2},
        {"smartspec_class": 7, "smartspec_weight": -1},
        {"smartspec_class": "x" * 65, "smartspec_weight": True},
    ]
    for number, extra_args in enumerate(options):
        engine.add(number, 20, 30, **extra_args)
    engine.run()
    whole = next(view for view in views if view.num_rows == 5)
    assert whole.class_ids.tolist() == [0, 1, 1, 0, 0]
    assert whole.weights.tolist() == [1, 1, 3, 1, 1]
    assert whole.row_caps.tolist() == [4, 0, 2, 4, 4]
    # those of four, and of the one of two
    assert {tuple(sorted(set(lengths))) for lengths in engine.verified_lengths} >= {(2, 4)}


def test_requests_that_end_are_forgotten(tmp_path):
    engine = run(make_config(tmp_path))
    speculation = engine.scheduler.speculation
    engine.add(99, 10, 3)  # the ends of the last ones are told with the next step
    engine.run()
    assert set(speculation.decider.callers._known) <= {"99"} and not speculation._steps


@pytest.mark.parametrize("policy", ["goodput", "observe"])
def test_with_other_weights_acceptance_is_learned_anew_and_costs_are_kept(policy, tmp_path):
    """Whoever changes weights resets vLLM's prefix cache: what it holds is of the old ones."""
    scheduler = run(make_config(tmp_path, settings={"policy": policy})).scheduler
    if policy == "observe":
        assert scheduler.reset_prefix_cache() and not scheduler.rest.steps
        return
    controller = scheduler.speculation.learner.controller.controller
    learned, costs = controller.acceptance.table(), controller.latency.to_dict()
    assert scheduler.reset_prefix_cache(reset_connector=True) and not scheduler.rest.steps
    assert (
        controller.acceptance.table()
        == Controller("off", 4, controller.latency, drafters=controller.drafters).acceptance.table()
    )
    assert controller.acceptance.table() != learned and controller.latency.to_dict() == costs


def test_a_controller_that_raises_costs_drafts_and_nothing_else(tmp_path, monkeypatch, caplog):
    engine = start(make_config(tmp_path, settings={"policy": "fixed:3"}))
    monkeypatch.setattr(Controller, "plan", failing)
    with caplog.at_level(logging.WARNING, "vllm.smartspec"):
        engine.serve(0, max_tokens=150)
    assert engine.scheduler.speculation.learner.controller.num_errors >= 1
    assert not any(engine.verified_lengths)
    assert [record.message for record in caplog.records].count(caplog.messages[0]) == 1


ODD = [
    10**30, -(10**30), 10**5000, 1e300, 1e308, -1, -1e-320, float("nan"), float("inf"), "5",
    "x" * 10**6, True, [1], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_odd_values_of_one_request_count_as_not_given(case, tmp_path, views, caplog):
    engine = start(make_config(tmp_path, **CASES[case]), acceptance=0.9)
    weights, classes = [0, 1e-320, 100.5], ["", "\udc80" * 65, 3]
    options = [{"smartspec_weight": value} for value in ODD + weights]
    options += [{"smartspec_max_draft_tokens": value} for value in ODD] + [
        {"smartspec_class": value} for value in classes
    ]
    for number, extra_args in enumerate(options):
        engine.add(number, 20, 60, **extra_args)
    engine.add(len(options), 20, 60)
    engine.scheduler.requests[str(len(options))].sampling_params.extra_args = ["no mapping"]
    with caplog.at_level(logging.WARNING, "vllm.smartspec"):
        engine.run()
    assert engine.scheduler.rest.steps == 0
    assert not engine.scheduler.speculation.learner.controller.errors
    assert {weight for view in views for weight in view.weights.tolist()} == {1.0}
    assert max(map(max, filter(None, engine.verified_lengths))) == 4
    warned = [message for message in caplog.messages if "counts as not given" in message]
    assert len(warned) == 3 and max(map(len, warned)) < 250, "one short line for each field"


def test_a_text_without_end_is_one_request_like_others(tmp_path):
    scheduler = Scheduler(make_config(tmp_path, settings={"policy": "fixed:2"}))
    engine = ToyEngine(scheduler)
    engine.add(0, 20, 10**30)
    with pytest.raises(AssertionError, match="not done"):
        engine.run(max_steps=50)
    assert scheduler.rest.steps == 0 and engine.verified_lengths[-1] == [2]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "hook", ["before_schedule", "after_schedule", "while_running", "before_update", "after_update"]
)
def test_a_failing_plugin_leaves_it_to_vllm_and_begins_anew(
    hook, case, tmp_path, monkeypatch, caplog
):
    config = make_config(tmp_path, settings={"policy": "fixed:2"}, **CASES[case])
    engine = start(config)
    work, num_calls = getattr(Speculation, hook), [0]

    def fail_once(*arguments):
        """With its work done or half done."""
        num_calls[0] += 1
        answer = work(*arguments)
        return 1 / 0 if num_calls[0] == 10 else answer

    monkeypatch.setattr(Speculation, hook, fail_once)
    engine.serve(0, max_tokens=600)
    assert sum("then it begins anew" in message for message in caplog.messages) == 1
    lengths = [max(lengths, default=0) for lengths in engine.verified_lengths]
    assert max(lengths[:8]) <= 2
    assert 4 in lengths[20:90]  # vLLM's own
    assert set(lengths[120:-8]) == {2}  # at the end fewer tokens are left


def test_a_plugin_that_fails_again_and_again_is_called_ever_more_seldom(
    tmp_path, monkeypatch, caplog
):
    engine = start(make_config(tmp_path), acceptance=0.0)
    engine.scheduler.max_model_len = 10**9
    monkeypatch.setattr(
        "smartspec.vllm_plugin.step.batch.decoding_requests", lambda scheduler: 1 / 0
    )
    engine.serve(0, max_tokens=1500)
    rests = [record.args[0] for record in caplog.records if "begins anew" in record.msg]
    assert rests == [100, 200, 400, 800] and engine.scheduler.speculation is not None


@pytest.mark.parametrize("case", CASES)
def test_what_never_comes_is_not_waited_for(case, tmp_path):
    """Steps whose outcome is never told, and requests that are aborted while they run: other
    decisions are made, and nothing is kept."""
    config = make_config(tmp_path, settings={"policy": "fixed:2"}, **CASES[case])
    scheduler = Scheduler(config)
    engine = ToyEngine(scheduler)
    for number in range(300):
        engine.add(number, 20, 30)
        for lost in range(4):
            output = scheduler.schedule()
            scheduler.get_grammar_bitmask(output)
            if lost == 0:  # the only one of which anything is heard
                engine._finish(
                    output, ModelRunnerOutput({n: 0 for n in output.num_scheduled_tokens}, [[]])
                )
        scheduler.finish(str(number))
    scheduler.schedule()
    speculation = scheduler.speculation
    held = [value for value in vars(speculation).values() if isinstance(value, list | dict)]
    assert max(map(len, held)) <= 40 and len(speculation.decider.callers._known) <= 20
    assert speculation.learner.controller.controller.acceptance.num_tracked_requests <= 20
    engine.serve(999, max_tokens=100)
    assert engine.verified_lengths[-5] == [2]


def assert_stock(config, caplog, reason: str) -> None:
    assert type(Scheduler(config)) is StockScheduler
    assert len(caplog.messages) == 1 and reason in caplog.messages[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallel is 2"),
        ({"enable_adaptive_verification": True}, "adaptive verification"),
    ],
)
def test_a_set_up_that_is_not_supported_gets_the_stock_scheduler(changes, reason, tmp_path, caplog):
    assert_stock(make_config(tmp_path, **changes), caplog, reason)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("__version__", version, version) for version in ("0.29.1", "0.34.0", "1.0", "nightly")),
        (
            "schedulers.Scheduler.update_from_output",
            lambda self, outputs: None,
            "update_from_output takes self, outputs in this",
        ),
    ],
)
def test_another_vllm_gets_the_stock_scheduler(name, value, reason, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(f"vllm.{name}", value)
    assert_stock(make_config(tmp_path), caplog, reason)


def test_a_missing_attribute_leaves_draft_lengths_alone(tmp_path, caplog, monkeypatch):
    make = StockScheduler.__init__

    def make_without(self, *arguments):
        make(self, *arguments)
        del self.max_model_len

    monkeypatch.setattr(StockScheduler, "__init__", make_without)
    scheduler = Scheduler(make_config(tmp_path))
    assert scheduler.speculation is None and scheduler.dynamic_sd_lookup is None
    assert len(caplog.messages) == 1 and "has no max_model_len" in caplog.messages[0]


def test_a_name_of_the_configuration_that_is_gone_is_one_line(tmp_path, caplog):
    config = make_config(tmp_path)
    del config.speculative_config.num_speculative_tokens_per_batch_size
    scheduler = Scheduler(config)
    assert scheduler.speculation is None and scheduler.dynamic_sd_lookup is None
    assert [("another" in m, "per_batch_size" in m) for m in caplog.messages] == [(True, True)]
    del config.parallel_config.pipeline_parallel_size
    assert type(Scheduler(config)) is config.scheduler_config.get_scheduler_cls()
    assert "pipeline_parallel_size" in caplog.messages[-1]


def test_an_untested_version_is_tried_where_that_is_said(tmp_path, monkeypatch, caplog):
    """And what such a version lacks is said, and taken for what it is."""
    monkeypatch.setattr("vllm.__version__", "0.34.0")
    monkeypatch.setenv("SMARTSPEC_UNTESTED", "1")
    scheduler = Scheduler(make_config(tmp_path))
    assert scheduler.speculation is not None and not caplog.messages
    for name in ("builder", "drafts"):
        monkeypatch.delitem(sys.modules, f"smartspec.vllm_plugin.speculation.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", ModuleType("vllm.v1.outputs"))
    scheduler = Scheduler(make_config(tmp_path))
    assert scheduler.speculation is scheduler.toggle is scheduler.dynamic_sd_lookup is None
    assert len(caplog.messages) == 1 and "DraftTokenIds" in caplog.messages[0]
