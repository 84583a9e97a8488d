"""Drafters for tests that need none which drafts: a model-free one, one with passes, and their
views of a step."""

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests

LOOKUP = DrafterSpec("lookup", match_lengths=(0, 2, 3, 4, 6, 9))
RECYCLING = DrafterSpec("recycling", match_lengths=(0, 2, 3))
MODEL = DrafterSpec("model", has_passes=True)


def found(lengths, match_lengths=None) -> DrafterView:
    """Of a model-free drafter, int [R] each; matches are as long as the drafts where nothing else
    is said."""
    lengths = np.asarray(lengths)
    return DrafterView(lengths, np.asarray(lengths if match_lengths is None else match_lengths))


def lagging(num_rows: int, lag=0) -> DrafterView:
    """Of a drafter with passes. lag: int [R], or one for all."""
    return DrafterView(np.full(num_rows, UNLIMITED), lag=np.broadcast_to(lag, num_rows).copy())


def estimates_of(latency, lookup=None, model=None, acceptance=None) -> Estimates:
    """Of lookup, of a model, or of both in this order. lookup, model: survival, float [R, K]."""
    pairs = [
        (spec, survival)
        for spec, survival in ((LOOKUP, lookup), (MODEL, model))
        if survival is not None
    ]
    return Estimates(
        tuple(s for s, _ in pairs),
        np.stack([survival for _, survival in pairs]),
        latency,
        acceptance,
    )


def free_test(position, matched) -> FreeTests:
    """One test in each row, at that position, where matched (int [R]) is not negative."""
    matched = np.asarray(matched)
    return FreeTests(
        np.broadcast_to(position, matched.shape).copy(), (matched >= 0) * 1, (matched > 0) * 1
    )


def free_test_after(verified, chains, longest: int) -> FreeTests:
    """Of drafts of the longest length with chains right tokens (int [R]): of the first token that
    was not verified, where all before it were right."""
    is_tested = (chains >= verified) & (verified < longest)
    return free_test(verified, np.where(is_tested, chains > verified, -1))
