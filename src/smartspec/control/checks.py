"""Checks of input that cannot be true: problems of a step's view, or of its outcome.

A problem is one line: its kind, a colon, and a sentence that names the value. A host may raise it,
or count it by kind and go on.
"""

from collections.abc import Iterator
from math import inf, isfinite

import numpy as np

from smartspec.control.records import BatchView, Outcome, StepSeconds

NO_STEP_BEFORE = -inf
_DRAFTER_COUNTS = ("lengths", "match_lengths", "lag")
_VIEW_COUNTS = ("context_tokens", "row_caps", "class_ids")
_STEP_COUNTS = (
    "num_waiting",
    "num_prefills",
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_attended_tokens",
)
_FEEDBACK_COUNTS = ("drafted", "verified", "tested", "accepted")


def view_problem(
    view: BatchView, last_now: float = NO_STEP_BEFORE, num_drafters: int | None = None
) -> str | None:
    """Return the first problem of a view that is to be planned, None if there is none.

    last_now: seconds, when the step before began. num_drafters: drafters there are (None: any).
    """
    return next(_view_problems(view, last_now, num_drafters), None)


def outcome_problem(
    planned: BatchView | None, outcome: Outcome, max_draft_tokens: float = inf
) -> str | None:
    """Return the first problem of an outcome, None if there is none.

    planned: the view it was planned for (None: there is none). max_draft_tokens: K, the longest
    draft that is configured.
    """
    return next(_outcome_problems(planned, outcome, max_draft_tokens), None)


def seconds_problem(seconds: StepSeconds) -> str | None:
    """Return the problem of measured times, None if there is none."""
    for name, value in vars(seconds).items():
        if not 0 <= value < inf:
            return f"seconds: {name} seconds are {value}, they must be finite and not negative"
    return "seconds: target seconds are 0.0, a pass takes time" if seconds.target == 0 else None


def kind_of(problem: str) -> str:
    """Return the kind of a problem, which it is counted under."""
    return problem.partition(":")[0]


def _view_problems(view: BatchView, last_now: float, num_drafters: int | None) -> Iterator[str]:
    if not isfinite(view.now):
        yield f"clock: now is {view.now}, it must be finite"
    if view.now < last_now:
        yield (
            f"clock: now is {view.now}, before {last_now} of the last step; it must not go "
            "backwards"
        )
    if num_drafters is not None and len(view.drafters) != num_drafters:
        yield f"drafter: the view has {len(view.drafters)} drafters, the controller {num_drafters}"
    columns = {name: getattr(view, name) for name in _VIEW_COUNTS}
    for number, drafter in enumerate(view.drafters):
        columns |= {
            f"drafters[{number}].{name}": getattr(drafter, name) for name in _DRAFTER_COUNTS
        }
    yield from _wrong_shapes(columns | {"weights": view.weights}, view.num_rows)
    if len(set(view.request_ids.tolist())) < view.num_rows:
        yield f"request: ids {view.request_ids.tolist()} are not unique"
    for name, values in (columns | {name: getattr(view, name) for name in _STEP_COUNTS}).items():
        if not np.all(values >= 0):
            yield f"count: {name} is {np.asarray(values).tolist()}, it must not be negative"
    if not (np.isfinite(view.weights) & (view.weights >= 0)).all():
        yield f"weight: weights are {view.weights.tolist()}, they must be finite and not negative"


def _outcome_problems(
    planned: BatchView | None, outcome: Outcome, max_draft_tokens: float
) -> Iterator[str]:
    view = outcome.view
    if problem := seconds_problem(outcome.seconds):
        yield problem
    if view is not planned:
        yield from _other_requests(planned, view)
    yield from _wrong_shapes(
        {name: getattr(outcome, name) for name in _FEEDBACK_COUNTS}, view.num_rows
    )
    yield from _contradictions(outcome)
    yield from _wrong_free_tests(outcome, max_draft_tokens)
    longest = int(outcome.drafted.max(initial=0))
    if longest > max_draft_tokens:
        yield f"length: a draft of {longest} tokens, the longest configured is {max_draft_tokens}"
    most = view.num_rows + view.num_prefills + sum(outcome.accepted.tolist())
    if not 0 <= outcome.num_emitted <= most:
        yield (
            f"count: num_emitted is {outcome.num_emitted}, accepted drafts and prefills allow 0 to "
            f"{most}"
        )


def _other_requests(planned: BatchView | None, view: BatchView) -> Iterator[str]:
    ids = view.request_ids.tolist()
    if planned is None:
        yield f"request: ids {ids} are of no step that was planned"
        return
    expected = planned.request_ids.tolist()
    if unknown := sorted(set(ids) - set(expected)):
        yield f"request: ids {unknown} were not in the step that was planned"
    if ids != expected:
        yield f"request: outcome is about ids {ids}, planned were {expected}, in this order"


def _wrong_shapes(columns: dict[str, np.ndarray], num_rows: int) -> Iterator[str]:
    for name, column in columns.items():
        if np.shape(column) != (num_rows,):
            yield f"shape: {name} has shape {np.shape(column)}, there are {num_rows} requests"


def _contradictions(outcome: Outcome) -> Iterator[str]:
    drafted, verified = outcome.drafted, outcome.verified
    tested, accepted = outcome.tested, outcome.accepted
    is_sound = (np.minimum(tested, accepted) >= 0) & (np.maximum(tested, accepted) <= verified)
    is_sound &= verified <= drafted
    if not is_sound.all():
        row = int(is_sound.argmin())
        yield (
            f"count: row {row} has drafted {drafted[row]}, verified {verified[row]}, tested "
            f"{tested[row]}, accepted {accepted[row]}; it must be 0 <= tested, accepted <= "
            "verified <= drafted"
        )
    drafter, num_drafters = outcome.plan.drafter, len(outcome.view.drafters)
    is_wrong = (verified > 0) & ((drafter < 0) | (drafter >= num_drafters))
    if is_wrong.any():
        yield (
            f"drafter: tokens of drafters {drafter[is_wrong].tolist()} were verified, there are "
            f"{num_drafters}"
        )


def _wrong_free_tests(outcome: Outcome, max_draft_tokens: float) -> Iterator[str]:
    for number, free in enumerate(outcome.free_tests):
        columns = {f"free_tests[{number}].{name}": column for name, column in vars(free).items()}
        yield from _wrong_shapes(columns, outcome.view.num_rows)
        is_sound = (free.position >= 0) & ((free.position < max_draft_tokens) | (free.tested == 0))
        is_sound &= (free.matched >= 0) & (free.matched <= free.tested)
        if not is_sound.all():
            row = int(is_sound.argmin())
            yield (
                f"count: free_tests[{number}], row {row}: matched {free.matched[row]} of "
                f"{free.tested[row]} tested at {free.position[row]}; it must be 0 <= matched <= "
                "tested, at a position of a draft"
            )
