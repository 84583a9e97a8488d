"""The expected yield of drafts of a length, from the outcomes of drafts of the same and of other
lengths."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt

import numpy as np

from smartspec.observation.records import DraftOutcome, Observation

# how well something is known: measured, interpolated, extrapolated
RANKS = SEEN, BETWEEN, BEYOND = "seen", "between", "beyond"
LEAST_ROWS = 100  # outcomes of a length: with fewer, another length says more
# neighbouring steps of a request are alike: so many outcomes say as much as an independent one
ALIKE_STEPS = 4.0
DOUBT_BEYOND = 0.5  # of what drafts deeper than any seen would bring
Outcomes = Mapping[DraftOutcome, int]


@dataclass(frozen=True)
class Draft:
    """The mean draft of a request in a step: draft tokens verified and accepted, the standard
    deviation of the latter, how it is known, and the share of steps in which the request has
    any."""

    verified: float
    accepted: float
    deviation: float
    known: str
    share: float


NO_DRAFT = Draft(0.0, 0.0, 0.0, SEEN, 0.0)


def draft_of(observation: Observation, length: int) -> Draft:
    """Drafts of this length, for the same traffic. Requests that accept less take more steps for
    the same tokens, so classes are weighted by the steps that their tokens would take. ValueError
    where drafts were never to be made."""
    if length <= 0:
        return NO_DRAFT
    # what was emitted without drafts counts by the tokens of the class
    by_class = [
        outcomes
        for outcomes in observation.by_class.values()
        if any(outcome.drafted for outcome in outcomes)
    ]
    if not by_class:
        if any(outcome.length for outcome in observation.outcomes):  # a lookup that found nothing
            return NO_DRAFT
        raise ValueError("no draft was verified: acceptance is unknown")
    drafts = [_draft_of_class(outcomes, length) for outcomes in by_class]
    tokens = [sum(n * (1 + o.accepted) for o, n in outcomes.items()) for outcomes in by_class]
    steps = np.array([n / (1 + draft.accepted) for n, draft in zip(tokens, drafts, strict=True)])
    shares = steps / steps.sum()
    means = shares @ np.array([(each.verified, each.accepted, each.share) for each in drafts])
    verified, accepted, share = means.tolist()
    deviation = float(np.linalg.norm(shares * [each.deviation for each in drafts]))
    known = max((each.known for each in drafts), key=RANKS.index)
    return Draft(verified, accepted, deviation, known, share)


def acceptance_by_depth(outcomes: Outcomes) -> list[tuple[float, int]]:
    """The acceptance by depth: of a draft token, given that those before it were accepted, and how
    many were tested."""
    found = []
    for depth in range(1, 1 + max((outcome.drafted for outcome in outcomes), default=0)):
        tested = sum(
            n for o, n in outcomes.items() if o.drafted >= depth and o.accepted >= depth - 1
        )
        if tested:
            right = sum(n for o, n in outcomes.items() if o.accepted >= depth)
            found.append((right / tested, tested))
    return found


def accepted_moments(outcomes: Outcomes, length: float = inf) -> tuple[float, float]:
    """The mean and the variance of a request's accepted draft tokens in a step, of drafts that are
    cut to a length."""
    mean = _mean(outcomes, lambda o: min(o.accepted, length))
    return mean, _mean(outcomes, lambda o: min(o.accepted, length) ** 2) - mean**2


def _mean(outcomes: Outcomes, value: Callable[[DraftOutcome], float]) -> float:
    return sum(n * value(o) for o, n in outcomes.items()) / sum(outcomes.values())


def _draft_of_class(outcomes: Outcomes, length: int) -> Draft:
    """From drafts that were as long, else longer: their first tokens; else from the longest."""
    rows: Counter[int] = Counter()
    for outcome, count in outcomes.items():
        if outcome.length:
            rows[outcome.length] += count
    enough = [k for k, count in rows.items() if count >= LEAST_ROWS] or rows
    source = min([k for k in enough if k >= length], default=max(enough))
    known = BETWEEN if source >= length else BEYOND
    if source == length and rows[source] >= LEAST_ROWS:
        known = SEEN
    mine = {outcome: count for outcome, count in outcomes.items() if outcome.length == source}
    accepted, variance = accepted_moments(mine, length)
    draft = Draft(
        verified=_mean(mine, lambda o: min(o.drafted, length)),
        accepted=accepted,
        deviation=sqrt(max(variance, 0.0) * ALIKE_STEPS / rows[source]),
        known=known,
        share=_mean(mine, lambda o: o.drafted > 0),
    )
    return _extended(draft, mine, source, length - source) if source < length else draft


def _extended(seen: Draft, outcomes: Outcomes, longest: int, more: int) -> Draft:
    """The draft with more tokens than any seen: these are accepted as the last one was."""
    whole = _mean(outcomes, lambda o: o.drafted == longest)
    tested = _mean(outcomes, lambda o: o.drafted == longest and o.accepted >= longest - 1)
    all_right = _mean(outcomes, lambda o: o.accepted == longest)
    chance = all_right / tested if tested else 0.0
    further = all_right * sum(chance**depth for depth in range(1, more + 1))
    return replace(
        seen,
        verified=seen.verified + whole * more,
        accepted=seen.accepted + further,
        deviation=hypot(seen.deviation, DOUBT_BEYOND * further),
    )
