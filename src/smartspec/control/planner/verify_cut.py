"""Cutting drafts once their confidence is known, without bias for what was drawn.

A sampled draft token is verified without loss if whether it is kept is settled before it is drawn. By then its own
confidence is known (records.Drafted), and that of all positions up to its own. What comes later is not: the confidence
of later tokens, and with it how long its own draft and those of other rows become (StopRule), tells which token it was.
So the best cut of the drafts as they are, a maximum over the number of tokens kept, is biased where an expensive first
token opens room for cheap ones: it would be kept for the sake of those after it, that is, for what it was.

Drafts are therefore cut position by position, as they were drawn. At each position the rows that are still kept go on,
most valuable first, as long as a token's gain exceeds the price of one more token in the pass:

    (i, j) is kept  iff  (i, j - 1) is kept  and  gain[i, j] > price[tokens kept so far]

where "so far" is at earlier positions, or at this one in rows of larger gain (of equal gain, in rows that came first
before). Prices are settled before drafting. So, by induction over j, what is kept at position j is a function of
confidence and of which drafts go on at positions up to j, all of which is known before any token at j is drawn.

The price of the n-th token is the slope there of the greatest convex minorant of the pass's time, over all tokens that
were planned for: where time is convex, what the token adds; where one token is expensive and the next ones cheap, their
average. Slopes never fall, so gains that exceed them one by one exceed the minorant's rise together.
"""

import numpy as np

ROUNDING = 1e-12  # of times, relative


def worth_verifying(gains: np.ndarray, lengths: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """How much of each draft to keep: int [R], at most lengths.

    gains: float [R, K], expected (weighted) tokens that each draft token brings; element j must depend on nothing that
    is known only once the token at j is drawn. lengths: int [R], of the drafts. prices: float [N], of the first to N-th
    draft token of the pass in the same unit, never decreasing, N >= lengths.sum(), settled before drafting.
    """
    kept = np.zeros_like(lengths)
    num_kept = 0
    rows = np.arange(len(lengths))
    for position in range(int(lengths.max(initial=0))):
        rows = rows[lengths[rows] > position]
        rows = rows[(-gains[rows, position]).argsort(kind="stable")]
        rows = rows[gains[rows, position] > prices[num_kept : num_kept + len(rows)]]
        kept[rows] += 1
        num_kept += len(rows)
    return kept


def convex_slopes(seconds: np.ndarray) -> np.ndarray:
    """Slopes of the greatest convex minorant of times (float [N + 1]): float [N], never decreasing."""
    slopes = np.empty(len(seconds) - 1)
    tolerance = ROUNDING * float(np.abs(seconds).max())
    start = 0
    while start < len(slopes):
        chords = (seconds[start + 1 :] - seconds[start]) / np.arange(1, len(seconds) - start)
        end = start + 1 + int(np.flatnonzero(chords <= chords.min() + tolerance)[-1])
        slopes[start:end] = chords[end - start - 1]
        start = end
    return np.maximum.accumulate(slopes)
