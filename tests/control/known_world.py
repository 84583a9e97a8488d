"""A world whose ground truth is known: acceptance, times and therefore the best lengths."""

import factories
import numpy as np
from best_lengths import StepTimes, plan_lengths
from drafter_cases import found, free_test_after, lagging

from smartspec.control import CostCurve, StepSeconds

K = 8
HOST_SECONDS = 0.002


def rates(*values: float) -> np.ndarray:
    """Of rows whose tokens are all as likely: float [R, K]."""
    return np.repeat(np.array(values)[:, None], K, axis=1)


class World:
    """Rows whose j-th draft token is accepted with a fixed conditional probability (float [R, K]),
    on a machine of known speed."""

    def __init__(self, conditional, target: CostCurve, draft=None, seed=0, weight=1.0):
        self.rng = np.random.default_rng(seed)
        self.target, self.draft = target, draft
        self.num_rows = len(conditional)
        self.ids, self.weights = np.arange(self.num_rows), np.full(self.num_rows, weight)
        self.set_acceptance(conditional)

    def set_acceptance(self, conditional):
        self.conditional, self.survival = conditional, np.cumprod(conditional, axis=1)

    def view(self):
        matched = found(np.full(self.num_rows, K), np.full(self.num_rows, 3))
        drafters = (matched if self.draft is None else lagging(self.num_rows),)
        return factories.make_view(self.ids, drafters=drafters, row_caps=K, weights=self.weights)

    def target_seconds(self, num_draft_tokens):
        return self.target.seconds(self.num_rows + num_draft_tokens, 0.0, self.num_rows)

    def draft_seconds(self, depth):
        return (
            0.0
            if self.draft is None
            else depth * float(self.draft.seconds(self.num_rows, 0.0, self.num_rows))
        )

    def goodput(self, lengths):
        """True expected tokens per second of these lengths, drafting charged at full width."""
        emitted = self.num_rows + self.survival[np.arange(K) < lengths[:, None]].sum()
        seconds = (
            self.target_seconds(lengths.sum()) + self.draft_seconds(lengths.max()) + HOST_SECONDS
        )
        return emitted / float(seconds)

    def best_lengths(self, survival):
        """Were that the survival."""
        full = np.full(self.num_rows, K)
        times = StepTimes(
            np.array([self.draft_seconds(depth) for depth in range(K + 1)]),
            self.target_seconds(np.arange(self.num_rows * K + 1)),
            HOST_SECONDS,
        )
        needs_depth = np.full(self.num_rows, self.draft is not None)
        return plan_lengths(survival, full, full / K, needs_depth, times).lengths

    def best_goodput(self):
        return self.goodput(self.best_lengths(self.survival))

    def step(self, controller):
        """One step; returns the lengths verified."""
        chains = factories.draw_chains(self.rng, self.conditional, (self.num_rows, K))
        noise = np.exp(0.03 * self.rng.standard_normal(2))

        def told(plan, keep):
            seconds = StepSeconds(
                draft=self.draft_seconds(keep.max()) * noise[0],
                target=float(self.target_seconds(keep.sum())) * noise[1],
                host=HOST_SECONDS,
            )
            if self.draft is not None:
                return {"seconds": seconds}
            free = free_test_after(keep, chains, K)
            return {"seconds": seconds, "drafted": np.full(len(keep), K), "free_tests": (free,)}

        return factories.play_step(controller, self.view(), chains, told).verified
