"""Cutting drafts once their confidence is known, without bias for what was drawn.

Verification of a sampled draft token is lossless only if it is decided before the token is drawn whether it is kept. At
that time its own confidence is known (records.Drafted), and that of all earlier positions. The confidence of later
tokens is not known: it tells which token was drawn. So do the final lengths of its own draft and of other rows' drafts,
because the StopRule depends on confidence. The best cut of finished drafts, a maximum over the number of tokens kept,
is therefore biased. An expensive first token may open room for cheap ones; it would be kept for the tokens after it,
that is, for what it was.

Drafts are therefore cut position by position, as they were drawn. At each position, the rows whose earlier tokens are
all kept are sorted by gain. A token is kept as long as its gain exceeds the price of one more token in the pass:

    (i, j) is kept  iff  (i, j - 1) is kept  and  gain[i, j] > price[tokens kept so far]

"So far" means: at earlier positions, or at this one in rows of larger gain (of equal gain: in rows that came first).
Prices are settled before drafting. By induction over j, what is kept at position j depends only on confidence at
positions up to j, and on which drafts go on there. All of that is known before any token at j is drawn.

The price of the n-th token is the slope at n of the greatest convex minorant of the pass's time over all planned
tokens. Where time is convex, it is what the token adds. Where one token is expensive and the next ones are cheap, it is
their average. Slopes never fall. So gains that exceed them one by one also exceed the minorant's rise together.
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
