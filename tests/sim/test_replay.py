"""Replays of logs whose ground truth is known: exact where the log holds the answer, close where
hindsight must do."""

import json
from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL
from recorded_run import K, ToyRun

from smartspec.cli.replay import replay as replay_command
from smartspec.control import Plan
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.sim.replay.draft_outcomes import draft_outcomes_of
from smartspec.sim.replay.hindsight import HindsightAcceptance
from smartspec.sim.replay.policy_replay import ReplayTotals, replay

NUM_STEPS = 300


@pytest.fixture(scope="module")
def long_drafts() -> ToyRun:
    """Everything was drafted and verified: the log knows every outcome."""
    return ToyRun(f"fixed:{K}", NUM_STEPS)


def replayed(run: ToyRun, tmp_path, *policies: str) -> list[ReplayTotals]:
    return replay(RecordedLog(run.write(tmp_path / "log.jsonl")), list(policies))[1]


@pytest.mark.parametrize("policy", ["off", "fixed:3", "goodput"])
@pytest.mark.parametrize("use_model", [False, True])
def test_the_recorded_policy_replays_to_what_was_recorded(policy, use_model, tmp_path):
    run = ToyRun(policy, 100, use_model=use_model)
    recorded, (again,) = replay(RecordedLog(run.write(tmp_path / "log.jsonl")), [policy])
    assert recorded.num_emitted == sum(record.outcome.num_emitted for record in run.records)
    assert again.num_emitted == recorded.num_emitted
    assert again.num_verified == recorded.num_verified
    assert again.seconds == pytest.approx(recorded.seconds, rel=1e-12)
    assert again.log_share == 1.0


def test_shorter_drafts_than_recorded_are_known_exactly(long_drafts, tmp_path):
    policies = ["off", *(f"fixed:{k}" for k in range(1, K + 1))]
    for length, totals in enumerate(replayed(long_drafts, tmp_path, *policies)):
        assert totals.num_emitted == long_drafts.emitted(length)
        assert totals.log_share == 1.0
        assert totals.mean_length == length


def test_longer_drafts_than_recorded_are_drawn_and_right_on_average(tmp_path):
    run = ToyRun("fixed:1", 700)
    short, long = replayed(run, tmp_path, "fixed:1", f"fixed:{K}")
    assert short.log_share == 1.0
    # From the log alone only where all four requests had a rejection at the first or second token.
    share = np.mean((run.chains < 2).all(axis=1))
    assert long.log_share == pytest.approx(share, abs=0.001)
    assert long.num_emitted == pytest.approx(run.emitted(K), rel=0.05)


def test_speeds_are_as_in_truth(long_drafts, tmp_path):
    """Time follows the machine, not its profile."""
    lengths = range(K + 1)
    by_replay = [
        t.tokens_per_second
        for t in replayed(long_drafts, tmp_path, "off", *(f"fixed:{k}" for k in lengths[1:]))
    ]
    ground_truth = []
    for k in lengths:
        plan = Plan(np.full(4, k), np.zeros(4, dtype=int))
        seconds = sum(
            long_drafts.seconds(record.view, plan, plan.lengths).total
            for record in long_drafts.records
        )
        ground_truth.append(long_drafts.emitted(k) / seconds)
    np.testing.assert_allclose(by_replay, ground_truth, rtol=0.03)


def test_goodput_learns_during_the_replay(long_drafts, tmp_path):
    off, goodput, longest = replayed(long_drafts, tmp_path, "off", "goodput", f"fixed:{K}")
    assert goodput.tokens_per_second > 0.98 * max(off.tokens_per_second, longest.tokens_per_second)
    assert 0 < goodput.mean_length < K


def test_random_numbers_are_the_same_for_every_policy_and_run(tmp_path):
    run = ToyRun("fixed:1", 200)
    one, two, again = replayed(run, tmp_path, "fixed:4", "fixed:5", "fixed:4")
    assert vars(one) == vars(again)
    assert vars(one) == vars(replayed(run, tmp_path, "fixed:4")[0])
    assert two.num_emitted >= one.num_emitted
    other = replay(RecordedLog(tmp_path / "log.jsonl"), ["fixed:4"], seed=1)[1][0]
    assert other.num_emitted != one.num_emitted


def test_a_draft_model_that_was_off_first_lags(tmp_path):
    run = ToyRun("off", 3, num_rows=1, use_model=True)
    assert [int(record.view.draft_lags[0, 0]) for record in run.records] == [50, 51, 52]
    (late,) = replayed(run, tmp_path, "fixed:2")
    first = run.records[0]
    up_to_date = first.view.with_lags_up_to(0)
    run.records[0] = replace(first, outcome=replace(first.outcome, view=up_to_date))
    (prompt,) = replayed(run, tmp_path, "fixed:2")
    assert late.seconds - prompt.seconds == pytest.approx(50 * 0.0001), "50 tokens, once"


def test_where_a_request_ended_longer_drafts_emit_no_more(long_drafts, tmp_path):
    record = long_drafts.records[0]
    counts = {"tested": np.array([2, 2, 2, 2]), "accepted": np.array([2, 2, 2, 2])}
    outcome = replace(record.outcome, **counts, free_tests=(), num_emitted=8)
    ended = replace(record, outcome=outcome)
    draft_outcomes = draft_outcomes_of(
        ended, 0, LOOKUP, np.ones((4, K)), np.empty(0), np.zeros((4, K))
    )
    assert (
        draft_outcomes.num_accepted.tolist() == draft_outcomes.max_emitted.tolist() == [2, 2, 2, 2]
    )
    run = ToyRun("off", 0)
    run.records.append(ended)
    for policy, num_emitted in (("off", 4), ("fixed:1", 8), ("fixed:2", 8), ("fixed:5", 8)):
        (totals,) = replayed(run, tmp_path, policy)
        assert (totals.num_emitted, totals.log_share) == (num_emitted, 1.0), policy


def test_another_drafter_has_no_recorded_outcome(long_drafts):
    chances, rank_chances = (np.full((4, K), value) for value in (0.5, 0.4)), np.empty(0)
    conditional, uniform = chances
    draft_outcomes = draft_outcomes_of(
        long_drafts.records[0], 1, MODEL, conditional, rank_chances, uniform
    )
    assert (
        draft_outcomes.num_known.tolist() == [0] * 4
        and draft_outcomes.num_accepted.tolist() == [K] * 4
    )


def test_hindsight_acceptance_tells_requests_apart(long_drafts):
    hindsight = HindsightAcceptance(K, (LOOKUP,))
    for record in long_drafts.records:
        hindsight.add(record)
    hindsight.fit()
    view = long_drafts.records[0].view
    conditional = hindsight.conditional(view)[0]
    np.testing.assert_allclose(
        conditional, np.repeat(long_drafts.acceptance[:, None], K, axis=1), atol=0.08
    )
    unknown = hindsight.conditional(replace(view, request_ids=view.request_ids + 1000))[0]
    assert (np.ptp(unknown, axis=0) < 1e-12).all() and 0.5 < unknown[0, 0] < 0.8


def test_a_truncated_last_line_is_left_out_with_a_notice(long_drafts, tmp_path, capsys):
    """Not one that lacks its end alone, nor what is appended later."""
    path = long_drafts.write(tmp_path / "log.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    log = RecordedLog(path)
    path.write_bytes(whole + b"nonsense\n")
    assert len(list(log)) == NUM_STEPS and log.notice is None
    path.write_bytes(whole[:-20])
    log = RecordedLog(path)
    assert len(list(log)) == NUM_STEPS - 1
    assert "last line breaks off" in log.notice and f"line {NUM_STEPS + 1}" in log.notice
    replay_command(path, "fixed:2", 0)
    assert "last line breaks off" in capsys.readouterr().out


def too_long(line: str) -> str:
    data = json.loads(line)
    return json.dumps(data | {"lengths": [K + 1] * 4})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line[:30], "line 3: not valid JSON"),
        (lambda line: "", "line 3: not valid JSON"),
        (
            lambda line: line.replace('"accepted"', '"acepted"'),
            "line 3: field 'accepted' .* nothing",
        ),
        (lambda line: line.replace('"format":2', '"format":7'), "line 3: field 'format' is 7"),
        (lambda line: "\udcff", "line 3: not UTF-8"),
        (too_long, f"line 3: a draft of {K + 1} tokens"),
    ],
)
def test_a_corrupt_line_is_named(long_drafts, tmp_path, change, words):
    path = long_drafts.write(tmp_path / "log.jsonl")
    lines = path.read_text().splitlines()
    lines[2] = change(lines[2])
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=words):
        replay(RecordedLog(path), ["off"])


def test_logs_without_content(long_drafts, tmp_path):
    path, step = tmp_path / "log.jsonl", long_drafts.records[0]
    header = long_drafts.header.to_json() + "\n"
    silent = replace(step, outcome=replace(step.outcome, num_emitted=0)).to_json()
    for text, said in (
        ("", "is empty"),
        (f"{step.to_json()}\n", r"line 1: .*header"),
        (header, "holds no step"),
        (f"{header}{silent}\n", "holds no step that emitted a token"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            replay(RecordedLog(path), ["off"])
    with pytest.raises(OSError, match=r"missing\.jsonl"):
        RecordedLog(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("policy", ["best", "fixed:9", "perfect-estimates"])
def test_an_unknown_policy_is_refused(long_drafts, tmp_path, policy):
    with pytest.raises(ValueError, match=policy):
        replayed(long_drafts, tmp_path, policy)


def test_a_policy_without_a_token_has_no_ratio(long_drafts, tmp_path, capsys):
    record = long_drafts.records[0]
    run = ToyRun("off", 0)
    # One token less of each request than was accepted and sampled: without drafts none is left.
    run.records.append(
        replace(
            record, outcome=replace(record.outcome, num_emitted=int(record.outcome.accepted.sum()))
        )
    )
    replay_command(run.write(tmp_path / "log.jsonl"), "fixed:2", 0)
    assert "fixed:2" in capsys.readouterr().out


def test_the_command_prints_a_table(long_drafts, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    replay_command(long_drafts.write(tmp_path / "log.jsonl"), "fixed:2, uniform:2,4,goodput", 0)
    rows = [line for line in capsys.readouterr().out.splitlines() if "%" in line]
    names = ["recorded (fixed:5)", "off", "fixed:2", "uniform:2,4", "goodput"]
    assert all(name in row for name, row in zip(names, rows, strict=True))
    assert str(NUM_STEPS) in rows[0] and "2.00" in rows[2] and "100%" in rows[2]
