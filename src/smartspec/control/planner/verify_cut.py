"""The cut of drafts once their confidence is known, without bias for the tokens that were drawn.

Verification of a sampled draft token is lossless only if the token is kept or cut by a decision made before it is
drawn. At that time its own confidence is known (records.Drafted), and that of all earlier positions. The confidence of
later tokens must not be used, because it depends on which token was drawn. The same holds for the final lengths of its
own draft and of other rows' drafts, because the StopRule depends on confidence. The best cut of finished drafts, a
maximum over the number of tokens kept, is therefore biased. An expensive first token may open room for cheap ones. It
would be kept for the tokens after it, that is, because of which token it was.

So each token is compared with one price, which is fixed before drafting:

    (i, j) is kept  iff  (i, j - 1) is kept  and  gain[i, j] > price of a token in the pass

The decision depends only on confidence at positions up to j of the same row. All of that is known before the token at j
is drawn.
"""

import numpy as np


def lengths_to_verify(gains: np.ndarray, lengths: np.ndarray, price: float) -> np.ndarray:
    """Return the number of tokens of each draft to keep: int [R], at most lengths.

    gains: float [R, K], expected (weighted) tokens that each draft token brings, never increasing along a row. Element
    j must depend on nothing that is known only once the token at j is drawn. lengths: int [R], of the drafts. price: of
    a token, in the same unit, fixed before drafting.
    """
    return np.minimum((gains > price).sum(axis=1), lengths)
