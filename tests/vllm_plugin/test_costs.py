"""What steps take: learned from steps, kept on disk, and not believed when the file is of something
else."""

import pytest
from json_files import read_json
from test_scheduling import run
from toy_engine import make_config, start

from smartspec.control import CostCurve, DrafterSpec, LatencyModel
from smartspec.observation.records import StepSize
from smartspec.vllm_plugin.costs.sources import CostFile
from smartspec.vllm_plugin.costs.steps import MIXED_TRIAL_STEPS, TRIAL_STEPS, StepCosts
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.speculation.learner import Learner
from smartspec.vllm_plugin.step.batch import Prefill
from smartspec.vllm_plugin.step.decision import EmittedTokens, Step


def size(rows: int, fed: int, context: int, seconds: float, passes: int = 0) -> StepSize:
    """A step without prefill."""
    return StepSize(seconds, rows, rows, context, fed, fed - rows, fed, 0, 0, passes)


def test_a_trial_tries_every_length():
    costs, lengths = StepCosts(has_passes=False), []
    while not costs.is_complete:
        lengths.append(costs.next_trial(range(6)))
        costs.add(size(1, 1 + lengths[-1], 100, 0.02 + 0.001 * lengths[-1]))
    assert (
        len(lengths) == TRIAL_STEPS
        and set(lengths) == set(range(6))
        and lengths[:4] == [0, 0, 5, 5]
    )
    assert costs.fit().target.seconds(4.0, 100, 1) == pytest.approx(0.023, rel=0.01)


@pytest.mark.parametrize("steps_of_a_decision", [1, 2, 3])
def test_every_length_is_tried_where_steps_share_a_decision(steps_of_a_decision):
    """As with asynchronous scheduling, where steps are noted after the next ones were decided."""
    costs, lengths = StepCosts(has_passes=True), []
    while not costs.is_complete:
        lengths.append(costs.next_trial(range(6)))
        for _ in range(steps_of_a_decision + len(lengths) % 2):
            costs.add(size(1, 1 + lengths[-1], 100, 0.02))
    assert set(lengths) == set(range(6))


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_a_trial_ends_where_every_step_has_prefill(method, tmp_path):
    engine = start(make_config(tmp_path, method=method))
    engine.scheduler.max_num_scheduled_tokens = 12
    learner = engine.scheduler.speculation.learner
    engine.add(0, prompt_tokens=4, max_tokens=400)
    engine.add(1, prompt_tokens=1500, max_tokens=4)
    ends, make_controller = [], learner.make_controller

    def note_the_end(latency):
        ends.append((len(engine.num_decoding), latency))
        return make_controller(latency)

    learner.make_controller = note_the_end
    engine.run()
    steps, latency = ends[0]
    assert MIXED_TRIAL_STEPS <= steps < MIXED_TRIAL_STEPS + 4
    tried = (
        engine.draft_lengths if method == "draft_model" else list(map(sum, engine.verified_lengths))
    )
    assert set(range(5)) <= set(tried[:steps])
    assert latency.target.seconds(12.0, 100, 2) == pytest.approx(0.032, rel=0.1)


def test_contexts_of_one_length_are_not_what_a_step_costs():
    def seconds(fed_tokens: int, context_tokens: int) -> float:
        return 0.05 + 0.002 * fed_tokens + 1e-5 * context_tokens

    costs = StepCosts(has_passes=False)
    for step in range(TRIAL_STEPS):
        fed = 1 + step % 6
        costs.add(size(1, fed, 300 + step, seconds(fed, 300 + step)))
    assert costs.fit().target.seconds(32.0, 32 * 400, 32) < 0.3  # the true value is 0.24
    for rows in (2, 4, 8):
        for fed, context in ((rows, 900 * rows), (2 * rows, 300 * rows)):
            costs.add(size(rows, fed, context, seconds(fed, context)))
    assert costs.fit().target.seconds(8.0, 7200, 8) == pytest.approx(seconds(8, 7200), rel=0.05)


def test_costs_are_kept_for_the_next_start(tmp_path):
    first = run(make_config(tmp_path))
    assert len(first.verified_lengths) > 64
    (path,) = (tmp_path / "cache" / "vllm").glob("*.json")
    stored = LatencyModel.from_dict(read_json(path)["cost_model"])
    assert stored.target.seconds(6.0, 600, 6) == pytest.approx(0.026, rel=0.05)
    again = run(make_config(tmp_path), num_requests=1, max_tokens=30)
    assert again.scheduler.speculation.learner.latency.to_dict() == stored.to_dict()


def test_the_controller_goes_on_with_the_costs_of_all_steps(tmp_path):
    engine = run(make_config(tmp_path, method="draft_model"), max_tokens=300)
    learner = engine.scheduler.speculation.learner
    assert learner.controller.controller._latency is learner.latency
    base, per_token, per_pass = engine.seconds
    assert learner.latency.target.seconds(6.0, 1800, 6) == pytest.approx(
        base + 6 * per_token + per_pass, rel=0.05
    )
    assert learner.latency.drafts[0].seconds(6.0) == pytest.approx(per_pass, rel=0.2)


def test_another_rank_reads_and_does_not_write(tmp_path):
    run(make_config(tmp_path, data_parallel_size=2, data_parallel_index=1))
    assert not list((tmp_path / "cache" / "vllm").glob("*.json"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": {"model": "other"}}', "\x00\x00"])
def test_a_corrupt_file_is_reported_and_written_anew(content, tmp_path, caplog):
    run(make_config(tmp_path))
    (path,) = (tmp_path / "cache" / "vllm").glob("*.json")
    path.write_text(content)
    run(make_config(tmp_path))
    assert any("is unusable" in message for message in caplog.messages)
    assert read_json(path)["cost_model"]


def test_costs_without_draft_passes_do_not_fit_a_drafter_that_has_them(tmp_path, caplog):
    file = CostFile(tmp_path, {"model": "x"})
    file.store(LatencyModel(CostCurve.linear(0.02, 0.001)).to_dict())
    files = FileThread()
    assert file.load((DrafterSpec("ngram"),), files) is not None
    assert file.load((DrafterSpec("eagle3", has_passes=True),), files) is None
    assert "cost curve" in caplog.text
    assert not list(file.path.parent.glob(".storing-*"))


@pytest.mark.parametrize("is_later", [False, True])
def test_draft_passes_count_in_the_step_whose_time_has_them(is_later):
    """With vLLM's V2 runner the passes of a step's drafts are in the time of the next step."""
    found, nothing = [], lambda *_: None
    drafter = DrafterSpec("draft_model", has_passes=True, kept_passes=1)
    learner = Learner(
        drafter,
        found.append,
        None,
        on_steps=nothing,
        on_costs=nothing,
        has_late_drafts=lambda: is_later,
    )
    made = 0
    for rows in [1, 8] * TRIAL_STEPS:
        verified, before, made = made, made, learner.costs.next_trial(range(5))
        step = Step(
            None,
            0.0,
            Prefill(),
            {str(row): verified for row in range(rows)},
            rows * verified,
            rows,
            100 * rows,
            made,
        )
        step.seconds = (
            0.02
            + 0.0005 * rows * (1 + verified)
            + 0.003 * max((before if is_later else made) - 1, 0)
        )
        learner.learn(step, EmittedTokens({}))
        learner.report()
    assert found[0].drafts[0].seconds(1.0) == pytest.approx(0.003, rel=0.1)


def test_steps_that_are_faster_than_predicted_are_learned_from(tmp_path):
    """Steps that took less than was predicted for their draft passes alone were refused as without
    a target's pass."""
    engine = run(make_config(tmp_path, method="draft_model", settings={"policy": "fixed:4"}))
    engine.seconds = (1e-4, 0.0, 0.0)
    engine.serve(10, 11, max_tokens=200)
    controller = engine.scheduler.speculation.learner.controller
    assert not controller.num_errors and not controller.controller.num_ignored
