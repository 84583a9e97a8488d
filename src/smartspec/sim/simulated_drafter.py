"""What a simulated drafter drafts in a step, and what of it is right: the same in whole runs and in
steady state."""

import numpy as np

from smartspec.control import (
    BatchView,
    Drafted,
    DrafterSpec,
    DrafterView,
    Estimates,
    FreeTests,
    Plan,
)
from smartspec.control.records import UNLIMITED, StopRule
from smartspec.core.draft_columns import drafted_of
from smartspec.sim.settings import LATER_CHILD_SHARE
from smartspec.sim.world.acceptance import GroundTruthAcceptance, Places, count_leading
from smartspec.sim.world.step_time import GroundTruthTime
from smartspec.sim.world.trees import SimulatedTrees, true_rank_chances


class SimulatedDrafter:
    """The drafts of a batch, by at most one drafter.

    seed: of the noise of time; acceptance has random numbers of its own, common to all policies.
    later_child_share: see world.trees.
    """

    def __init__(
        self,
        time: GroundTruthTime,
        acceptance: GroundTruthAcceptance,
        *,
        drafter: DrafterSpec | None,
        seed: int = 0,
        later_child_share: float = LATER_CHILD_SHARE,
    ):
        self.time = time
        self.acceptance = acceptance
        self._drafter = drafter
        self._has_passes = drafter is not None and drafter.has_passes
        self._makes_trees = drafter is not None and drafter.makes_trees
        self._noise = np.random.default_rng(seed)
        self._later_child_share = later_child_share
        self._positions = np.zeros(0, dtype=np.int64)  # output positions, see world.acceptance
        # int [R], tokens of each answer that are still to come
        self._num_left: np.ndarray | int = UNLIMITED

    def true_estimates(self, view: BatchView, outcomes: bool = False) -> Estimates:
        """The knowledge of perfect estimates about the step that is under way. outcomes: what
        perfect outcomes know, which tokens of a chain are right."""
        if outcomes:
            num_right = self._draw(view)
            longest = self.acceptance.max_draft_tokens
            survival = (np.arange(longest) < num_right[:, None]).astype(float)
            return Estimates((self._drafter,), survival[None], self.time.at(view))
        survival = np.cumprod(self.acceptance.expected(self._at(view)), axis=1)
        rank_chances = true_rank_chances(self._drafter, self._later_child_share)
        return Estimates(
            (self._drafter,), survival[None], self.time.at(view), rank_chances=rank_chances
        )

    def _draw(self, view: BatchView) -> np.ndarray:
        """The right tokens of a chain of each row: int [R]."""
        at = self._at(view)
        self._conditional = self.acceptance.conditional(at)
        is_right = self.acceptance.uniform(at) < self._conditional
        return np.minimum(count_leading(is_right), self._num_left)

    def _at(self, view: BatchView) -> Places:
        return Places(view.request_ids, self._positions, view.now)

    def _drafts_of(self, view: BatchView, plan: Plan) -> tuple[Drafted, SimulatedTrees | None]:
        """The drafts that are made for a plan, which EOS and its stop rule may end early if they
        are made in passes. No trees where it is one of chains."""
        self._num_right = self._draw(view)
        lengths = np.minimum(plan.lengths_of(0), view.draft_lengths.max(axis=0, initial=0))
        if plan.width > 1 and self._makes_trees and lengths.any():
            trees = SimulatedTrees.of(
                self.acceptance, self._later_child_share, self._at(view), plan, lengths
            )
            return drafted_of(trees.drafts, self.acceptance.max_draft_tokens), trees
        if not self._has_passes or not lengths.any():
            return Drafted(lengths), None
        draws_eos = self._num_right == self._num_left
        lengths = np.where(draws_eos, np.minimum(lengths, self._num_left), lengths)
        confidence, entropy = self.acceptance.confidence(self._at(view), self._conditional)
        if plan.stop is not None:
            lengths = stop_early(plan.stop, lengths, confidence, entropy)
        return Drafted(lengths, masked(confidence, lengths)), None

    def _divergence(self, view: BatchView, verified: np.ndarray) -> np.ndarray:
        """Of draft and target at each verified token: float [R, K]."""
        return masked(self.acceptance.divergence(self._at(view), self._conditional), verified)

    def _free_tests(
        self, found: tuple[DrafterView, ...], verified: np.ndarray
    ) -> tuple[FreeTests, ...]:
        """A model-free draft is known before verification."""
        tests, right = [], self._num_right
        for view in found:
            tested = (right >= verified) & (verified < view.lengths) & (not self._has_passes)
            matched = tested & (right > verified)
            tests.append(FreeTests(verified, tested.astype(np.int64), matched.astype(np.int64)))
        return tuple(tests)


def masked(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """values (float [R, K]), NaN after the first lengths[i] of each row."""
    return np.where(np.arange(values.shape[1]) < lengths[:, None], values, np.nan)


def stop_early(
    stop: StopRule, lengths: np.ndarray, confidence: np.ndarray, entropy: np.ndarray
) -> np.ndarray:
    """Lengths of drafts (int [R]) when the stop rule is applied after every pass: int [R]."""
    drafted = lengths.copy()
    for depth in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(drafted > depth)
        if not len(rows):
            break
        stopped = np.asarray(
            stop(depth, rows, confidence[rows, depth], entropy[rows, depth]), dtype=bool
        )
        drafted[rows[stopped]] = depth + 1
    return drafted
