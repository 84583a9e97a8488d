"""The drafts that a step could have: for each row a drafter, and the worth of each of its
tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.planning import drafter_yields, length_caps, no_drafter
from smartspec.control.records import BatchView, of_drafter


@dataclass(frozen=True)
class Candidate:
    """One assignment of drafters to rows. R rows, K the longest draft."""

    estimates: Estimates  # of the width of these drafts
    group: tuple[int, ...]  # the drafters with passes that it uses
    drafter: np.ndarray  # int [R]
    caps: np.ndarray  # int [R], the longest draft of each row
    worth: np.ndarray  # float [R, K], weight times survival, 0 beyond the longest draft
    # int [R, K], the passes that each token takes; None where all drafts exist
    depths: np.ndarray | None
    lag: np.ndarray  # int [R], tokens that the drafter's KV lacks

    @cached_property
    def late(self) -> np.ndarray | None:
        """Rows whose draft begins with a draft prefill: bool [R]; None where none does. The tokens
        of the last step are no lag: each step feeds those."""
        late = self.lag > self.estimates.max_draft_tokens + 1
        return late if self.group and late.any() else None


def candidates(
    view: BatchView, estimates: Estimates, widths: tuple[int, ...], like: Candidate | None = None
) -> Iterator[Candidate]:
    """Yield the assignments to compare, for chains and for trees: the model-free drafters alone,
    and beside each drafter with passes. A row gets the drafter of largest yield among them.

    like: only the one of the same width and drafters."""
    models = tuple(number for number in estimates.models if view.drafters[number].lengths.any())
    free = tuple(n for n, drafter in enumerate(estimates.drafters) if not drafter.has_passes)
    # Those with passes first: of equals, a trial is made of these.
    groups = dict.fromkeys([*((number,) for number in models), models, *([()] if free else [])])
    widths = widths if like is None else (like.estimates.width,)
    for shaped in {id(each): each for each in map(estimates.of_width, widths)}.values():
        for group in groups if like is None else [like.group]:
            yield _candidate(view, shaped, group, sorted((*free, *group)))


def _candidate(
    view: BatchView, estimates: Estimates, group: tuple[int, ...], usable: list[int]
) -> Candidate:
    drafter = no_drafter(view.num_rows)
    if len(usable) == 1:
        drafter = np.where(view.draft_lengths[usable[0]] > 0, usable[0], -1)
    elif usable:
        yields = np.where(view.draft_lengths > 0, drafter_yields(view, estimates), -1.0)[usable]
        drafter = np.where(yields.max(axis=0) < 0, -1, np.array(usable)[yields.argmax(axis=0)])
    caps = length_caps(view, drafter, estimates.max_draft_tokens)
    worth = view.weights[:, None] * estimates.survival_of(drafter)
    worth *= np.arange(estimates.max_draft_tokens) < caps[:, None]
    if not group:
        return Candidate(estimates, group, drafter, caps, worth, None, np.zeros_like(caps))
    lag = of_drafter(view.draft_lags, drafter) * estimates.has_passes(drafter)
    return Candidate(estimates, group, drafter, caps, worth, estimates.passes_of(drafter), lag)
