"""`smartspec log why`: what it says of a request is what the log holds."""

from pathlib import Path

import pytest
from recorded_run import K, ToyRun

from smartspec.cli.why import why
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.sim.replay.decisions import Decision, decisions_of

FIRST = 10  # number of the first request of a toy run, whose drafts are the worst
PLANNED = Decision(4, 2, 3, 5, 8, "lookup", 2.1, 3, 2, 300.0, 200.0, None)


def decisions(path: Path, request: int) -> list[Decision]:
    log = RecordedLog(path)
    return list(decisions_of(log, log.header, request))


@pytest.mark.parametrize("use_model", [False, True])
def test_the_decisions_of_a_request_are_those_of_its_row(use_model, tmp_path):
    run = ToyRun("goodput", 60, use_model=use_model)
    found = decisions(run.write(tmp_path / "log.jsonl"), FIRST + 1)
    assert [each.step for each in found] == list(range(1, 61))
    assert [each.length for each in found] == [int(record.lengths[1]) for record in run.records]
    assert sum(each.accepted for each in found) == sum(
        int(record.outcome.accepted[1]) for record in run.records
    )
    assert {each.drafter for each in found if each.length} == {"model" if use_model else "lookup"}
    assert all(each.found == K and each.why("goodput") for each in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "2 more would not pay"),
        ({"length": 5}, "as long as the draft that was found"),
        ({"length": 8, "found": 8, "verified": 8}, "as long as drafts may be"),
        ({"length": 0, "drafter": ""}, "none of 5 found would pay"),
        ({"length": 0, "found": 0, "drafter": ""}, "no drafter had a draft"),
        ({"length": 0, "longest": 0}, "no room"),
        ({"verified": 1}, "cut to 1"),
        ({"reason": "exploration"}, "exploration"),
    ],
)
def test_it_says_why(changes, words):
    decision = Decision(**vars(PLANNED) | changes)
    if changes.get("length") == 5:
        decision = Decision(**vars(decision) | {"verified": 5})
    assert words in decision.why("goodput")
    if not changes:
        assert decision.why("fixed:3") == "by the rule of fixed:3"


def test_the_command_explains_a_request_and_lists_all(tmp_path, capsys):
    run = ToyRun("fixed:2", 30)
    log = run.write(tmp_path / "log.jsonl")
    accepted = sum(int(record.outcome.accepted[0]) for record in run.records)
    why(log, FIRST)
    text = capsys.readouterr().out
    assert f"30 decoding steps, {30 + accepted} tokens" in " ".join(text.split())
    assert "lookup: in 30 steps" in text and "by the rule of" in " ".join(text.split())
    why(log, None)
    assert "4 requests" in (text := capsys.readouterr().out) and str(30 + accepted) in text
    with pytest.raises(ValueError, match="no step decoded request 999"):
        why(log, 999)
