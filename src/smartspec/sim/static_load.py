"""A controller in steady state: a fixed batch of requests decodes for ever; none arrives and none
ends.

The controller meets the same ground truth as in a whole simulation. It gets BatchViews directly,
one vectorised step after the other: there are no requests, blocks or scheduler. Every step also
logs its expected tokens and seconds, which takes the noise out of comparisons. Expected tokens are
sums of products of true acceptance; expected seconds have no noise.
"""

from dataclasses import dataclass, replace

import numpy as np

from smartspec.control import BatchView, Drafted, DrafterView, Outcome, Plan
from smartspec.core.batch import shorten
from smartspec.core.draft_columns import lengths_of
from smartspec.core.engine_core import Controller
from smartspec.sim.simulated_drafter import SimulatedDrafter, masked
from smartspec.sim.world.acceptance import Places
from smartspec.sim.world.trees import SimulatedTrees, right_path, tree_survival, tree_tests


@dataclass(frozen=True)
class Phase:
    """num_steps steps of num_rows new requests with a context of context_tokens each (it does not
    grow). The KV of drafters holds all prompts."""

    num_steps: int
    num_rows: int
    class_ids: tuple[int, ...] = (0,)  # workload classes, given to the rows in turn
    context_tokens: int = 512
    # after so many tokens a new request replaces the old one; None for never
    output_tokens: int | None = None
    tagged: bool = False  # the controller is told the classes


@dataclass(frozen=True)
class StaticLog:
    """One entry a step; float or int [num_steps]. Goodputs are in tokens per second."""

    num_rows: np.ndarray
    drafted: np.ndarray
    verified: np.ndarray
    # emitted, seconds: what happened
    emitted: np.ndarray
    seconds: np.ndarray
    # expected_emitted, expected_seconds: their expectations
    expected_emitted: np.ndarray
    expected_seconds: np.ndarray

    def goodput(self, steps: slice = slice(None)) -> float:
        """The realised goodput."""
        return float(self.emitted[steps].sum() / self.seconds[steps].sum())

    def expected_goodput(self, steps: slice = slice(None)) -> float:
        return float(self.expected_emitted[steps].sum() / self.expected_seconds[steps].sum())


class StaticLoad(SimulatedDrafter):
    """The ground truth of a steady-state batch."""

    def run(self, controller: Controller, phases: list[Phase]) -> StaticLog:
        """All steps of all phases."""
        entries, now = [], 0.0
        self._quiet_time = replace(self.time, jitter=0.0)
        self._silence = np.random.default_rng(0)
        self._next_request_id = 0
        self._request_ids = self._positions = self._lag = np.zeros(0, dtype=np.int64)
        for phase in phases:
            self._replace(controller, np.ones(phase.num_rows, dtype=bool), phase)
            for _ in range(phase.num_steps):
                view = self._view(phase, now)
                entry = self._step(controller, view)
                now += entry[3]
                entries.append((phase.num_rows, *entry))
                if phase.output_tokens is not None:
                    self._replace(controller, self._positions >= phase.output_tokens, phase)
        return StaticLog(*map(np.array, zip(*entries, strict=True)))

    def _replace(self, controller: Controller, is_new: np.ndarray, phase: Phase) -> None:
        """New requests in these rows (bool [R]); with another number of rows, all are new."""
        rows = np.flatnonzero(is_new)
        gone = (
            self._request_ids if len(self._request_ids) != len(is_new) else self._request_ids[rows]
        )
        for request_id in gone.tolist():
            self.acceptance.end(request_id)
            controller.end(request_id)
        if len(self._request_ids) != len(is_new):
            self._request_ids, self._positions, self._lag = np.zeros(
                (3, len(is_new)), dtype=np.int64
            )
        self._request_ids[rows] = self._next_request_id + np.arange(len(rows))
        self._positions[rows] = 1
        self._lag[rows] = 0
        self._next_request_id += len(rows)
        self._class_ids = np.resize(phase.class_ids, len(is_new))
        for request_id, class_id in zip(
            self._request_ids[rows].tolist(), self._class_ids[rows].tolist(), strict=True
        ):
            self.acceptance.begin(request_id, class_id)

    def _view(self, phase: Phase, now: float) -> BatchView:
        num_rows, longest = phase.num_rows, self.acceptance.max_draft_tokens
        drafters: tuple[DrafterView, ...] = ()
        if self._has_passes:
            drafters = (
                DrafterView(
                    np.full(num_rows, longest), lag=np.minimum(self._lag, phase.context_tokens)
                ),
            )
        elif self._drafter is not None:
            drafters = (self.acceptance.found(Places(self._request_ids, self._positions)),)
        return BatchView(
            request_ids=self._request_ids.copy(),
            context_tokens=np.full(num_rows, phase.context_tokens),
            row_caps=np.full(num_rows, longest),
            drafters=drafters,
            now=now,
            class_ids=self._class_ids + 1 if phase.tagged else None,
        )

    def _step(
        self, controller: Controller, view: BatchView
    ) -> tuple[int, int, int, float, float, float]:
        """Drafted, verified and emitted tokens, seconds, expected tokens and seconds."""
        plan = controller.plan(view)
        drafted, trees = self._drafts_of(view, plan)
        keep = controller.cut(plan, drafted)
        accepted, on_trees = np.minimum(self._num_right, keep), {}
        expected = float(np.nansum(masked(np.cumprod(self._conditional, axis=1), keep)))
        if trees is not None:
            accepted, expected, on_trees = self._verified_trees(trees, drafted, keep)
        num_fed = None if trees is None else trees.num_fed
        seconds = self.time.step_seconds(view, plan, drafted.lengths, keep, self._noise, num_fed)
        told = {
            "extras": {"divergence": self._divergence(view, keep)},
            "free_tests": self._free_tests(view.drafters, keep),
        }
        outcome = Outcome.of(view, plan, drafted, keep, accepted, seconds, **told | on_trees)
        controller.learn(plan, outcome)
        self._advance(plan, drafted.lengths, accepted)
        quiet = self._quiet_time.step_seconds(
            view, plan, drafted.lengths, keep, self._silence, num_fed
        ).total
        num_drafted, num_verified = int(drafted.lengths.sum()), int(keep.sum())
        return (
            num_drafted,
            num_verified,
            outcome.num_emitted,
            seconds.total,
            view.num_rows + expected,
            quiet,
        )

    def _advance(self, plan: Plan, drafted: np.ndarray, accepted: np.ndarray) -> None:
        """A draft model's KV holds the tokens that it drafted, except the last; a head's KV holds
        none of them. Of the other tokens, it lacks those that were emitted."""
        self._positions += 1 + accepted
        kept = 0 if self._makes_trees or self.time.later_drafts else drafted - 1
        self._lag = np.where(drafted > 0, np.maximum(accepted - kept, 0), self._lag + 1 + accepted)

    def _verified_trees(
        self, trees: SimulatedTrees, drafted: Drafted, keep: np.ndarray
    ) -> tuple[np.ndarray, float, dict]:
        """The outcome of the first keep[i] nodes of each tree: accepted nodes, int [R]; the
        expected number of these; and the other fields of an Outcome about trees."""
        verified = list(map(shorten, trees.drafts, keep.tolist()))
        paths = list(map(right_path, verified, trees.right))
        accepted = lengths_of(paths)
        pairs = zip(verified, trees.chances, strict=True)
        expected = float(sum(tree_survival(*pair).sum() for pair in pairs))
        longest = self.acceptance.max_draft_tokens
        tested, tests = tree_tests(verified, paths, accepted + 1, longest)
        tests = None if drafted.parents is None else tests
        return accepted, expected, {"tested": tested, "node_tests": tests, "extras": {}}
