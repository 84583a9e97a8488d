"""What several of the published baselines need: a batch to profile with, and the straggler cut."""

import numpy as np

from smartspec.control.policy import Estimates, model_free_first
from smartspec.control.records import BatchView, DrafterView


def even_view(num_rows: int, context_tokens: int, num_drafters: int = 0) -> BatchView:
    """A decode batch of equally long requests without prefill, as an offline profile would run it; no draft KV lags."""
    return BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context_tokens),
        max_draft_tokens=np.full(num_rows, context_tokens),
        drafters=(DrafterView(np.full(num_rows, context_tokens)),) * num_drafters,
    )


def cut_stragglers(lengths: np.ndarray, is_counted: np.ndarray) -> np.ndarray:
    """Lengths (int [R]) of the counted rows (bool [R]), none above their mean rounded up; other rows as they are.

    Draft models run in lock step, so one long draft keeps the whole batch waiting (arXiv 2509.01083, batch cap).
    """
    if not is_counted.any():
        return lengths
    ceiling = int(np.ceil(lengths[is_counted].mean()))
    return np.where(is_counted, np.minimum(lengths, ceiling), lengths)


def usual_model(view: BatchView, estimates: Estimates) -> np.ndarray:
    """Rows whose usual drafter drafts in passes of a model: bool [R]."""
    return estimates.has_passes(model_free_first(view, estimates))
