"""Replays of logs with trees: exact where the log holds the answer, right on average where it does
not."""

from dataclasses import replace

import numpy as np
import pytest

from smartspec.control import DecisionRecord, LogHeader, Outcome
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.control.records import depths_of
from smartspec.sim.executor import HEAD
from smartspec.sim.replay.policy_replay import replay
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_engine
from smartspec.sim.virtual_engine import Run
from smartspec.sim.world.recorded_acceptance import read_recordings
from smartspec.sim.world.recorded_ranks import ALL, UNKNOWN, recorded_ranks, successes_of
from smartspec.sim.world.traffic import Traffic

K, NUM_ROWS = 12, 4


def recorded(policy: str, path, num_tokens: int = 120) -> list[DecisionRecord]:
    """A log, written to path, of NUM_ROWS requests that get so many tokens each; its records."""
    scenario = Scenario(
        policy=policy, drafter="head", acceptance="eagle3", batch=NUM_ROWS, max_draft_tokens=K
    )
    engine, records = make_engine(scenario), list[DecisionRecord]()
    controller = engine.core.controller
    lines = [LogHeader("toy", policy, K, (HEAD,), controller.latency.to_dict()).to_json()]
    controller.on_record = records.append
    prompts, answers = np.full(NUM_ROWS, 50), np.full(NUM_ROWS, num_tokens)
    engine.serve(Traffic(prompts, answers, 0 * prompts, concurrency=NUM_ROWS), Run())
    path.write_text(
        "".join(f"{line}\n" for line in (*lines, *(record.to_json() for record in records)))
    )
    return records


@pytest.fixture(scope="module")
def large_trees(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "large.jsonl"
    return path, recorded(f"eagle2:{K}", path)


def of_trees(records: list[DecisionRecord]) -> list[Outcome]:
    """The outcome of steps with trees."""
    return [record.outcome for record in records if record.outcome.node_tests is not None]


def emitted_of_first_nodes(records: list[DecisionRecord], size: int) -> int:
    """What trees cut to their first nodes would have emitted."""
    total = sum(record.outcome.num_emitted for record in records)
    for outcome in of_trees(records):
        successes, has_ended = successes_of(outcome)
        accepted = (outcome.node_tests[:, :size] == 1).sum(axis=1)
        kept = successes + ~has_ended
        total += int((np.where(accepted < successes, accepted + 1, kept) - kept).sum())
    return total


@pytest.mark.parametrize("policy", [f"eagle2:{K}", "ddd", "sequoia:7", "goodput"])
def test_the_recorded_policy_replays_to_what_was_recorded(policy, tmp_path):
    records = recorded(policy, tmp_path / "log.jsonl")
    assert of_trees(records)
    then, (again,) = replay(RecordedLog(tmp_path / "log.jsonl"), [policy])
    assert then.num_emitted == sum(record.outcome.num_emitted for record in records)
    assert again.log_share == 1.0
    # What a policy decides by confidence or learns from it may differ: logs keep four digits.
    tolerance = 0.01 if policy in ("goodput", "sequoia:7") else 0.0
    assert again.num_emitted == pytest.approx(then.num_emitted, rel=tolerance)
    assert again.num_verified == pytest.approx(then.num_verified, rel=tolerance)
    assert again.seconds == pytest.approx(then.seconds, rel=max(tolerance, 1e-9))


@pytest.mark.parametrize(("policy", "size"), [("eagle2:1", 1), ("eagle2:5", 5), ("fixed:1", 1)])
def test_smaller_trees_than_recorded_are_known_exactly(large_trees, policy, size):
    """Of chains the top-1 child."""
    path, records = large_trees
    _, (totals,) = replay(RecordedLog(path), [policy])
    assert totals.num_emitted == emitted_of_first_nodes(records, size) and totals.log_share == 1.0


@pytest.mark.parametrize(
    ("policy", "other"), [("eagle2:6", "eagle2:12"), ("fixed:5", "eagle2:8"), ("ddd", "fixed:3")]
)
def test_what_was_not_recorded_is_drawn_and_right_on_average(policy, other, tmp_path):
    recorded(policy, tmp_path / "log.jsonl", num_tokens=400)
    _, (totals,) = replay(RecordedLog(tmp_path / "log.jsonl"), [other])
    ground_truth = recorded(other, tmp_path / "other.jsonl", num_tokens=400)
    steps = sum(record.view.num_rows for record in ground_truth)
    per_step = sum(record.outcome.num_emitted for record in ground_truth) / steps
    assert totals.num_emitted / totals.num_rows == pytest.approx(per_step, rel=0.06)
    # Batches are the recorded ones, which shrink at another moment.
    seconds = sum(record.outcome.seconds.total for record in ground_truth) / steps
    assert totals.seconds / totals.num_rows == pytest.approx(seconds, rel=0.12)
    assert totals.log_share < 1.0 or other == "fixed:3"


def test_a_recording_holds_what_a_chain_would_have_met(large_trees):
    _, records = large_trees
    recordings = read_recordings(records)
    assert len(recordings) == NUM_ROWS
    first = [outcome.node_tests[outcome.drafted > 0, 0] for outcome in of_trees(records)]
    outcomes = np.concatenate([recording.outcomes for recording in recordings])
    # Deeper nodes count as well, hence the tolerance.
    assert np.nanmean(outcomes) == pytest.approx(np.mean(np.concatenate(first) == 1), abs=0.08)


def test_ranks_are_told_as_far_as_the_path_was_compared(large_trees):
    _, records = large_trees
    outcome = next(outcome for outcome in of_trees(records) if (outcome.accepted > 1).any())
    rank, wrong = recorded_ranks(outcome, K)
    for row, accepted in enumerate(outcome.accepted.tolist()):
        path = np.flatnonzero(outcome.node_tests[row] == 1)
        assert depths_of(outcome.parents)[row, path].tolist() == list(range(1, accepted + 1))
        assert (rank[row, :accepted] >= 0).all() and (rank[row, accepted:] == UNKNOWN).all()
        last = path[-1] if len(path) else -1
        assert wrong[row, accepted] == (outcome.parents[row, : outcome.verified[row]] == last).sum()


def test_where_a_request_ended_nothing_more_is_right(large_trees):
    _, records = large_trees
    outcome = next(outcome for outcome in of_trees(records) if outcome.accepted[0] > 1)
    path = np.flatnonzero(outcome.node_tests[0] == 1)
    tests = outcome.node_tests.copy()
    tests[0, path[1:]], tests[0, np.isin(outcome.parents[0], path)] = -1, -1
    ended = replace(
        outcome, accepted=np.minimum(outcome.accepted, 1), tested=np.minimum(outcome.tested, 1)
    )
    ended = replace(ended, node_tests=tests)
    successes, has_ended = successes_of(ended)
    assert successes[0] == 1 and has_ended[0]
    rank, wrong = recorded_ranks(ended, K)
    assert rank[0, 0] >= 0 and (wrong[0, 1:] >= ALL).all()


@pytest.mark.parametrize("parent", ["5", "-2", "null"])
def test_a_tree_whose_nodes_follow_none_before_them_is_refused(large_trees, parent):
    _, records = large_trees
    text = next(record for record in records if record.outcome.parents is not None).to_json()
    damaged = text.replace('"parents":[[-1,', f'"parents":[[{parent},', 1)
    assert damaged != text
    with pytest.raises(ValueError, match="'parents' must name for every node one before it or -1"):
        DecisionRecord.from_json(damaged)
