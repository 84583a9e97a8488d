"""Sequoia (arXiv 2402.12374): one static tree for all requests, the best of the size that hardware
and batch favour."""

from dataclasses import replace

import numpy as np

from lab.policies.profiling_run import read_acceptance_by_rank
from smartspec.control.estimates import Estimates
from smartspec.control.expected_tree import child_chances, expected_trees
from smartspec.control.planning import length_caps, model_free_first, plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import MAX_TREE_NODES, BatchView, Plan


class Sequoia(Policy):
    """The size of largest expected tokens per second, and the best tree of that size if a child's
    chance depends on depth and rank alone. Every request gets that tree, whatever the confidence of
    its drafter.

    given: the path of a profiling run (see profiling_run), whose acceptance by rank holds at every
    depth, as published. Or the nodes of every tree; then, and with None, acceptance by depth and
    rank is what has been learned of the requests of the step. Without a number the size is chosen
    in every step, 0 allowed.

    Departures: children are the likeliest tokens and not drawn. Drafters that make no trees in
    passes draft as many tokens in their usual way. A tree is at most as large as the longest draft
    of the server.
    """

    def __init__(self, given: int | str | None = None):
        self.num_nodes = None if isinstance(given, str) else given
        self._by_rank = read_acceptance_by_rank(given) if isinstance(given, str) else None

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        drafter, longest = model_free_first(view, estimates), estimates.max_draft_tokens
        survival, passes, chances = estimates.survival_of(drafter), np.arange(1, longest + 1), None
        if makers := [number for number in estimates.rank_chances if (drafter == number).any()]:
            rows = np.isin(drafter, makers)
            chain, rank_chances = self._measured(longest) or (
                survival[rows].mean(axis=0),
                estimates.rank_chances[makers[0]],
            )
            nodes, depths = expected_trees(chain[None], rank_chances)
            survival, passes = (
                np.where(rows[:, None], nodes, survival),
                np.maximum.accumulate(depths[0]),
            )
            before = np.concatenate([[1.0], chain[:-1]])
            top = np.divide(chain, before, out=np.zeros_like(chain), where=before > 0)
            chances = np.minimum.accumulate(child_chances(top, rank_chances), axis=1)
        width = 1 if chances is None else chances.shape[1]
        size = self.num_nodes
        if size is None:
            caps = length_caps(view, drafter, min(longest, MAX_TREE_NODES))
            size = _best_size(view, estimates, drafter, caps, survival, passes, width)
        plan = plan_of_lengths(view, estimates, min(size, longest, MAX_TREE_NODES))
        if chances is None:
            return plan
        depths = np.where(plan.lengths > 0, passes[np.maximum(plan.lengths, 1) - 1], 0)
        return replace(plan, depths=depths, width=width, extras={"chances": chances})

    def _measured(self, longest: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Survival of a chain, float [longest], and chances of later children where the first is
        wrong; None where nothing was measured beforehand."""
        if self._by_rank is None:
            return None
        return self._by_rank[0] ** np.arange(1, longest + 1), self._by_rank[1:] / (
            1.0 - self._by_rank[0]
        )


def _best_size(
    view: BatchView,
    estimates: Estimates,
    drafter: np.ndarray,
    caps: np.ndarray,
    survival: np.ndarray,
    passes: np.ndarray,
    width: int,
) -> int:
    """Of drafts of one size, as far as rows may have it (caps: int [R]), that of most tokens per
    second. survival: float [R, K], of their nodes; passes: int [K], that trees of 1, 2, ... nodes
    take."""
    sizes = np.arange(int(caps.max(initial=0)) + 1)
    lengths = np.minimum(sizes[:, None], caps)
    after = np.concatenate([np.zeros((view.num_rows, 1)), survival.cumsum(axis=1)], axis=1)
    tokens = view.num_rows + np.take_along_axis(after, lengths.T, axis=1).sum(axis=0)
    seconds = estimates.latency.host_seconds + estimates.latency.target_seconds(
        view, lengths.sum(axis=1)
    )
    by_depth = estimates.latency.draft_seconds(view, drafter, len(passes), width)
    for number, each in enumerate(estimates.drafters):
        depths = np.concatenate([[0], passes])[sizes] if each.makes_trees else sizes
        seconds = seconds + by_depth[number, depths]
    return int((tokens / seconds).argmax())
