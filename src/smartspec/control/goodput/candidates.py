"""The drafts that a step could have: for each row a drafter, and the worth of each of its
tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.planning import drafter_yields, length_caps
from smartspec.control.records import BatchView, of_drafter


@dataclass(frozen=True)
class Candidate:
    """One assignment of drafters to rows. R rows, K the longest draft."""

    estimates: Estimates  # of the width of these drafts
    group: tuple[int, ...]  # the drafters with passes that it uses
    drafter: np.ndarray  # int [R]
    caps: np.ndarray  # int [R], the longest draft of each row
    worth: np.ndarray  # float [R, K], weight times survival, 0 beyond the longest draft
    lag: np.ndarray  # int [R], tokens that the drafter's KV lacks
    total: float  # sum of the weights, tokens of a step without drafts

    @cached_property
    def depths(self) -> np.ndarray:
        """The passes that each token takes, 0 where the draft exists: int [R, K]."""
        return self.estimates.passes_of(self.drafter)

    @cached_property
    def is_late(self) -> np.ndarray:
        """Rows whose draft begins with a draft prefill: bool [R]. The tokens of the last step are
        none: each step feeds those."""
        return self.lag > self.estimates.max_draft_tokens + 1


def candidates(
    view: BatchView, estimates: Estimates, widths: tuple[int, ...], like: Candidate | None = None
) -> Iterator[Candidate]:
    """Yield the assignments to compare, for chains and for trees: the model-free drafters alone,
    and beside each drafter with passes. A row gets the drafter of largest yield among them.

    like: only the one of the same width and drafters."""
    models = [number for number in estimates.models if view.drafters[number].lengths.any()]
    widths = widths if like is None else (like.estimates.width,)
    total = float(view.weights.sum())
    is_free = np.array([not drafter.has_passes for drafter in estimates.drafters])
    # Those with passes first: of equals, a trial is made of these.
    groups = [*((number,) for number in models), tuple(models), *([()] if is_free.any() else [])]
    groups = list(dict.fromkeys(groups)) if like is None else [like.group]
    for shaped in {id(each): each for each in map(estimates.of_width, widths)}.values():
        yields = np.where(view.draft_lengths > 0, drafter_yields(view, shaped), -1.0)
        for group in groups:
            usable = is_free.copy()
            usable[list(group)] = True
            of_usable = np.where(usable[:, None], yields, -1.0)
            drafter = np.where(of_usable.max(axis=0) < 0, -1, of_usable.argmax(axis=0))
            caps = length_caps(view, drafter, shaped.max_draft_tokens)
            worth = view.weights[:, None] * shaped.survival_of(drafter)
            worth = worth * (np.arange(shaped.max_draft_tokens) < caps[:, None])
            lag = of_drafter(view.draft_lags, drafter) * shaped.has_passes(drafter)
            yield Candidate(shaped, group, drafter, caps, worth, lag, total)
