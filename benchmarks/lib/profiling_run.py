"""What a profiling run measures for the policies batch-table and sequoia: the best draft length by
number of requests, and how often the first, second, ... child of a node is right. See
lab.policies.profiling_run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from smartspec.control.log.decision import DecisionRecord
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.control.records import Outcome
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_acceptance, ground_truth_time, make_controller
from smartspec.sim.static_load import Phase, StaticLoad
from smartspec.sim.world.recorded_ranks import child_ranks

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
NUM_STEPS, MIN_STEPS = 80, 10
MAX_RANKS, TREE_NODES = 8, 32


def profile_of(records: Iterable[DecisionRecord]) -> dict:
    """best_lengths and acceptance_by_rank of these steps. Numbers of requests are rounded up to
    powers of two; of a length that a number of requests had in fewer than MIN_STEPS steps nothing
    is known. ValueError where there is no step without prefill."""
    totals: dict[tuple[int, int], np.ndarray] = defaultdict(lambda: np.zeros(3))
    ranks = {True: np.zeros((2, MAX_RANKS)), False: np.zeros((2, MAX_RANKS))}  # of trees, of chains
    for record in records:
        outcome, view = record.outcome, record.view
        if not view.num_rows or view.prefill_tokens:
            continue
        size = 1 << (view.num_rows - 1).bit_length()
        if outcome.plan.width == 1:
            totals[size, int(record.lengths.max())] += outcome.num_emitted, outcome.seconds.total, 1
        ranks[outcome.parents is not None] += rank_hits(outcome)
    speeds = {
        key: tokens / seconds
        for key, (tokens, seconds, steps) in totals.items()
        if steps >= MIN_STEPS
    }
    if not speeds:
        raise ValueError(f"no draft length has {MIN_STEPS} steps without prefill: record longer")
    best = {
        size: max((n for s, n in speeds if s == size), key=lambda n: speeds[size, n])
        for size, _ in speeds
    }
    profile: dict = {"best_lengths": {str(size): best[size] for size in sorted(best)}}
    hits, tries = ranks[bool(ranks[True].any())]  # chains say nothing of later children
    shares = np.round(hits[tries > 0] / tries[tries > 0], 4).tolist()
    return profile | ({"acceptance_by_rank": shares} if shares else {})


def rank_hits(outcome: Outcome) -> np.ndarray:
    """How often the child of each rank was the target's token, and how often it was compared with
    it: int [2, MAX_RANKS]."""
    if outcome.parents is None or outcome.node_tests is None:
        return np.eye(1, MAX_RANKS, dtype=int) * [[outcome.accepted.sum()], [outcome.tested.sum()]]
    ranks = child_ranks(outcome.parents)
    is_known = ranks < MAX_RANKS
    of_tests = (outcome.node_tests == 1, outcome.node_tests >= 0)
    return np.stack(
        [np.bincount(ranks[is_known & tests], minlength=MAX_RANKS) for tests in of_tests]
    )


def recorded(paths: Iterable[Path]) -> Iterator[DecisionRecord]:
    """The steps of decision logs."""
    for path in paths:
        yield from RecordedLog(path)


def simulated(
    scenario: Scenario, sizes: Iterable[int] = SIZES, steps: int = NUM_STEPS
) -> list[DecisionRecord]:
    """Steps of steady batches of these sizes with every fixed length, off included. Where the
    drafter makes trees, also with trees of one shape: whether a child is in the draft does not
    depend on how sure the drafter is."""
    records: list[DecisionRecord] = []
    all_played = [
        replace(scenario, policy=f"fixed:{length}")
        for length in range(scenario.max_draft_tokens + 1)
    ]
    if scenario.drafter_spec.makes_trees:
        all_played.append(
            replace(scenario, policy=f"sequoia:{TREE_NODES}", max_draft_tokens=TREE_NODES)
        )
    for played in all_played:
        time, acceptance = ground_truth_time(played), ground_truth_acceptance(played)
        load = StaticLoad(time, acceptance, drafter=played.drafter_spec, seed=played.seed)
        controller = make_controller(played, time, load.true_estimates, played.drafter_spec)
        controller.on_record = records.append
        classes = tuple(range(len(acceptance.classes)))
        load.run(controller, [Phase(steps, size, classes, output_tokens=50) for size in sizes])
    return records
