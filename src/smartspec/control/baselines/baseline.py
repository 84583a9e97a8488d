"""What several of the published baselines need: a batch to profile with, and the straggler cut."""

import numpy as np

from smartspec.control.records import BatchView, Offers


def even_view(num_rows: int, context_tokens: int) -> BatchView:
    """A decode batch of equally long requests without prefill, as an offline profile would run it."""
    return BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context_tokens),
        max_draft_tokens=np.full(num_rows, context_tokens),
        unseen_tokens=np.zeros(num_rows, dtype=np.int64),
        offers=Offers.none(num_rows),
    )


def cut_stragglers(lengths: np.ndarray, is_counted: np.ndarray) -> np.ndarray:
    """Lengths (int [R]) of the counted rows (bool [R]), none above their mean rounded up; other rows as they are.

    Draft models run in lock step, so one long draft keeps the whole batch waiting (arXiv 2509.01083, batch cap).
    """
    if not is_counted.any():
        return lengths
    ceiling = int(np.ceil(lengths[is_counted].mean()))
    return np.where(is_counted, np.minimum(lengths, ceiling), lengths)
