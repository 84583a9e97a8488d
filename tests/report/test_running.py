"""The loop over runs: resumed, interrupted, out of time, with servers that fail."""

import pytest
from report_cases import matrix, measured

from smartspec.report.folder import Folder
from smartspec.report.running import MAX_FAILURES, run_matrix


class World:
    """Each run takes ten seconds of a clock of its own. at: what happens in the run of that number,
    from 0."""

    def __init__(self, at=None, fails=()):
        self.now, self.runs, self.at, self.fails = 0.0, [], at or {}, fails

    def clock(self) -> float:
        return self.now

    def __call__(self, run):
        if (event := self.at.get(len(self.runs))) is not None:
            raise event
        self.runs.append(run)
        self.now += 10
        failure = "it died" if run.variant in self.fails else None
        return measured(run.variant, run.cell, run.repetition, [1.0], failure=failure)


@pytest.fixture
def folder(tmp_path):
    return Folder.open(tmp_path / "out", matrix(), {}, "")


def play(folder, world, repetitions=2, **options):
    shown = []
    outcome = run_matrix(
        matrix(),
        folder,
        repetitions,
        world,
        lambda text, *numbers: shown.append(numbers),
        clock=world.clock,
        **options,
    )
    return outcome, shown


def test_all_runs_are_measured_once_and_the_time_that_is_left_is_known(folder):
    world = World()
    outcome, shown = play(folder, world)
    assert len(folder.valid()) == len(world.runs) == 12
    assert shown[0] == (0, 12, None) and shown[1] == (1, 12, 110.0) and shown[-1][2] == 10.0
    assert not outcome.is_interrupted
    again = World()
    play(folder, again)
    assert not again.runs
    play(folder, again, repetitions=3)
    assert {run.repetition for run in again.runs} == {2} and len(again.runs) == 6


def test_after_ctrl_c_the_round_that_was_cut_off_is_measured_again_as_a_whole(folder):
    outcome, _ = play(folder, World({4: KeyboardInterrupt()}))
    assert outcome.is_interrupted and len(folder.valid()) == 4
    rest = World()
    play(folder, rest)
    assert len(rest.runs) == 9 and rest.runs[0].cell == rest.runs[2].cell
    assert len(folder.valid()) == 12


def test_no_round_begins_that_ends_after_the_deadline(folder):
    world = World()
    outcome, _ = play(folder, world, deadline=65.0)
    assert outcome.is_out_of_time and len(world.runs) == 6
    outcome, _ = play(folder, world, deadline=world.now - 1)
    assert outcome.is_out_of_time and len(world.runs) == 6


def test_a_variant_that_always_fails_is_given_up_and_tried_again_by_the_next_command(folder):
    world = World(fails=("fixed:3",))
    outcome, _ = play(folder, world)
    assert outcome.given_up == ("fixed:3",)
    assert sum(run.variant == "fixed:3" for run in world.runs) == MAX_FAILURES
    assert len(folder.valid()) == 8 and len(folder.failed()) == 4
    assert {run.failure for run in folder.failed().values()} == {
        "it died",
        "not tried: 3 runs before it failed",
    }
    repaired = World()
    play(folder, repaired)
    assert [run.variant for run in repaired.runs] == ["fixed:3"] * 4 and len(folder.valid()) == 12
