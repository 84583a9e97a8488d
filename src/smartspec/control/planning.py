"""What policies share: who drafts for a row, how long its draft may be, and what a step has room
for."""

from functools import lru_cache

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.records import BatchView, Plan, of_drafter, with_fields


@lru_cache
def no_drafts(num_rows: int) -> Plan:
    """Return the plan of plain decoding; the same object for every caller."""
    lengths, drafter = np.zeros(num_rows, dtype=np.int64), no_drafter(num_rows)
    lengths.flags.writeable = drafter.flags.writeable = False
    return Plan(lengths=lengths, drafter=drafter)


def no_drafter(num_rows: int) -> np.ndarray:
    """Return the drafter of rows that do not draft: int [R], all -1."""
    return np.full(num_rows, -1)


def length_caps(view: BatchView, drafter: np.ndarray, max_draft_tokens: int) -> np.ndarray:
    """Return the longest draft that each row can have from its drafter (int [R]): int [R]."""
    caps = np.minimum(np.maximum(view.row_caps, 0), max_draft_tokens)
    return np.where(drafter >= 0, np.minimum(caps, of_drafter(view.draft_lengths, drafter)), 0)


def drafter_yields(view: BatchView, estimates: Estimates) -> np.ndarray:
    """Return the tokens expected to be accepted of the longest draft that each drafter can make:
    float [D, R]."""
    caps = np.minimum(view.draft_lengths, np.maximum(view.row_caps, 0))
    return (estimates.survival * (np.arange(estimates.max_draft_tokens) < caps[:, :, None])).sum(
        axis=2
    )


def model_free_first(
    view: BatchView, estimates: Estimates, yields: np.ndarray | None = None
) -> np.ndarray:
    """Return the usual drafter of each row: int [R]. It is a model-free one where one has a draft,
    because it is free, else one with passes. Of several it is that of largest yield. yields: see
    drafter_yields; -1 excludes a drafter."""
    if len(estimates.drafters) < 2 and yields is None:
        return no_drafter(view.num_rows) + len(estimates.drafters)
    yields = drafter_yields(view, estimates) if yields is None else yields
    is_free = np.array([not drafter.has_passes for drafter in estimates.drafters])
    first = (estimates.max_draft_tokens + 1) * (is_free[:, None] & (view.draft_lengths > 0))
    return (yields + first).argmax(axis=0)


def expected_tokens(view: BatchView, survival: np.ndarray, lengths: np.ndarray) -> float:
    """Return the (weighted) tokens that the decoding requests are expected to emit with drafts of
    these lengths (int [R]). survival: float [R, K]."""
    accepted = (survival * (np.arange(survival.shape[1]) < lengths[:, None])).sum(axis=1)
    return float(view.weights @ (1.0 + accepted))


def plan_of_lengths(view: BatchView, estimates: Estimates, lengths: np.ndarray | int) -> Plan:
    """Return the plan of drafts of these lengths (int [R], or one for all) from the usual drafter,
    cut to the longest that each row can have.

    Where they exceed view.draft_token_budget together, the longest are cut, to one length for all
    that are cut.
    """
    drafter = model_free_first(view, estimates)
    cut = np.minimum(length_caps(view, drafter, estimates.max_draft_tokens), lengths)
    if cut.sum() > view.draft_token_budget:
        ceilings = np.arange(estimates.max_draft_tokens + 1)
        totals = np.minimum(cut[:, None], ceilings).sum(axis=0)
        cut = np.minimum(cut, np.flatnonzero(totals <= view.draft_token_budget)[-1])
    return plan_by(drafter, cut)


def plan_by(drafter: np.ndarray, lengths: np.ndarray) -> Plan:
    """Return the plan of drafts of these lengths by these drafters, both int [R]. Rows of length 0
    have no drafter."""
    return Plan(lengths=lengths, drafter=np.where(lengths > 0, drafter, -1))


def fair_weights(view: BatchView, estimates: Estimates, fairness: float) -> BatchView:
    """Return the view with weights (float [R]) of the same sum that fall with the tokens that a
    step of the request is expected to emit, to the power of fairness: who drafts badly takes
    longer, and waits for each token of its own. Without a draft model the weights stay: a row for
    which nothing was found in this step is not a slow request."""
    models = [number for number in estimates.models if view.drafters[number].lengths.any()]
    if not fairness or not models or view.num_rows < 2 or not (total := float(view.weights.sum())):
        return view
    emitted = 1.0 + estimates.survival.sum(axis=2)[models].max(axis=0)
    weights = view.weights * emitted**-fairness
    return with_fields(view, weights=weights * (total / weights.sum()))


def within_budget(kept: np.ndarray, worth: np.ndarray, budget: int) -> np.ndarray:
    """Return the kept tokens (bool [R, K]) of most worth (float [R, K]) that a step has room
    for."""
    if kept.size <= budget or kept.sum() <= budget:
        return kept
    order = np.where(kept, -worth, 1.0).argsort(axis=None, kind="stable")[:budget]
    first = np.zeros(kept.size, dtype=bool)
    first[order] = True
    return kept & first.reshape(kept.shape)
