"""Checks of input that cannot be true: problems of a step's view, or of its outcome.

A problem is one line: its kind, a colon, and a sentence that names the value. A host may raise it,
or count it by kind and go on.
"""

from math import isfinite

import numpy as np

from smartspec.control.records import BatchView, Outcome

NO_STEP_BEFORE = -float("inf")
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


def first_problem(
    view: BatchView | None,
    outcome: Outcome | None = None,
    last_now: float = NO_STEP_BEFORE,
    max_draft_tokens: int | None = None,
    num_drafters: int | None = None,
) -> str | None:
    """Return the first problem of a view that is to be planned or, if an outcome is given, of that
    outcome; None if there is none.

    view: with an outcome, the view it was planned for (None: there is none). last_now: seconds,
    when the step before began. max_draft_tokens: K, the longest draft that is configured.
    num_drafters: drafters there are (None: any).
    """
    if outcome is None:
        assert view is not None, "there is neither a view nor an outcome to check"
        return _view_problem(view, last_now, num_drafters)
    return _outcome_problem(view, outcome, max_draft_tokens)


def kind_of(problem: str) -> str:
    """Return the kind of a problem, which it is counted under."""
    return problem.partition(":")[0]


def _view_problem(view: BatchView, last_now: float, num_drafters: int | None) -> str | None:
    if not isfinite(view.now):
        return f"clock: now is {view.now}, it must be finite"
    if view.now < last_now:
        return (
            f"clock: now is {view.now}, before {last_now} of the last step; it must not go "
            "backwards"
        )
    if num_drafters is not None and len(view.drafters) != num_drafters:
        return f"drafter: the view has {len(view.drafters)} drafters, the controller {num_drafters}"
    return _columns_problem(view)


def _columns_problem(view: BatchView) -> str | None:
    columns = {name: getattr(view, name) for name in _VIEW_COUNTS}
    for number, drafter in enumerate(view.drafters):
        columns |= {
            f"drafters[{number}].{name}": getattr(drafter, name) for name in _DRAFTER_COUNTS
        }
    if problem := _shape_problem(columns | {"weights": view.weights}, view.num_rows):
        return problem
    if len(set(view.request_ids.tolist())) < view.num_rows:
        return f"request: ids {view.request_ids.tolist()} are not unique"
    for name, values in (columns | {name: getattr(view, name) for name in _STEP_COUNTS}).items():
        if not np.all(values >= 0):
            return f"count: {name} is {np.asarray(values).tolist()}, it must not be negative"
    if not (np.isfinite(view.weights) & (view.weights >= 0)).all():
        return f"weight: weights are {view.weights.tolist()}, they must be finite and not negative"
    return None


def _outcome_problem(
    planned: BatchView | None, outcome: Outcome, max_draft_tokens: int | None
) -> str | None:
    if problem := _seconds_problem(outcome):
        return problem
    if outcome.view is not planned and (problem := _other_requests(planned, outcome.view)):
        return problem
    if problem := _rows_problem(outcome, max_draft_tokens):
        return problem
    most = outcome.view.num_rows + outcome.view.num_prefills + sum(outcome.accepted.tolist())
    if not 0 <= outcome.num_emitted <= most:
        return (
            f"count: num_emitted is {outcome.num_emitted}, accepted drafts and prefills allow 0 to "
            f"{most}"
        )
    return None


def _rows_problem(outcome: Outcome, max_draft_tokens: int | None) -> str | None:
    columns = {name: getattr(outcome, name) for name in _FEEDBACK_COUNTS}
    if problem := _shape_problem(columns, outcome.view.num_rows) or _contradiction(
        *columns.values()
    ):
        return problem
    if outcome.verified.any() and (problem := _unknown_drafter(outcome)):
        return problem
    if problem := _free_tests_problem(outcome, max_draft_tokens):
        return problem
    longest = int(outcome.drafted.max(initial=0))
    if max_draft_tokens is not None and longest > max_draft_tokens:
        return f"length: a draft of {longest} tokens, the longest configured is {max_draft_tokens}"
    return None


def _unknown_drafter(outcome: Outcome) -> str | None:
    num_drafters, drafter = len(outcome.view.drafters), outcome.plan.drafter
    if not (wrong := (outcome.verified > 0) & ((drafter < 0) | (drafter >= num_drafters))).any():
        return None
    return (
        f"drafter: tokens of drafters {drafter[wrong].tolist()} were verified, there are "
        f"{num_drafters}"
    )


def _seconds_problem(outcome: Outcome) -> str | None:
    seconds = outcome.seconds
    for name, value in (
        ("draft", seconds.draft),
        ("target", seconds.target),
        ("host", seconds.host),
    ):
        if not 0 <= value < float("inf"):
            return f"seconds: {name} seconds are {value}, they must be finite and not negative"
    return "seconds: target seconds are 0.0, a pass takes time" if seconds.target == 0 else None


def _other_requests(planned: BatchView | None, view: BatchView) -> str | None:
    ids = view.request_ids.tolist()
    if planned is None:
        return f"request: ids {ids} are of no step that was planned"
    expected = planned.request_ids.tolist()
    if unknown := sorted(set(ids) - set(expected)):
        return f"request: ids {unknown} were not in the step that was planned"
    return (
        None
        if ids == expected
        else f"request: outcome is about ids {ids}, planned were {expected}, in this order"
    )


def _shape_problem(columns: dict[str, np.ndarray], num_rows: int) -> str | None:
    for name, column in columns.items():
        if np.shape(column) != (num_rows,):
            return f"shape: {name} has shape {np.shape(column)}, there are {num_rows} requests"
    return None


def _free_tests_problem(outcome: Outcome, max_draft_tokens: int | None) -> str | None:
    longest = np.inf if max_draft_tokens is None else max_draft_tokens
    for number, free in enumerate(outcome.free_tests):
        columns = {f"free_tests[{number}].{name}": column for name, column in vars(free).items()}
        if problem := _shape_problem(columns, outcome.view.num_rows):
            return problem
        is_sound = (free.position >= 0) & ((free.position < longest) | (free.tested == 0))
        is_sound &= (free.matched >= 0) & (free.matched <= free.tested)
        if not is_sound.all():
            row = int(is_sound.argmin())
            return (
                f"count: free_tests[{number}], row {row}: matched {free.matched[row]} of "
                f"{free.tested[row]} tested at {free.position[row]}; it must be 0 <= matched <= "
                "tested, at a position of a draft"
            )
    return None


def _contradiction(
    drafted: np.ndarray, verified: np.ndarray, tested: np.ndarray, accepted: np.ndarray
) -> str | None:
    is_sound = (
        (tested >= 0)
        & (accepted >= 0)
        & (tested <= verified)
        & (accepted <= verified)
        & (verified <= drafted)
    )
    if is_sound.all():
        return None
    row = int(is_sound.argmin())
    return (
        f"count: row {row} has drafted {drafted[row]}, verified {verified[row]}, tested "
        f"{tested[row]}, accepted {accepted[row]}; it must be 0 <= tested, accepted <= verified <= "
        "drafted"
    )
