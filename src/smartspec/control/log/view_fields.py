"""The view of a step as fields of its decision record."""

from typing import Any

import numpy as np

from smartspec.control.log.json_fields import Fields, matrix_or_null
from smartspec.control.records import UNLIMITED, BatchView, DrafterView

# the field of each column; logs had no other name for row_caps
_VIEW_COLUMNS = {
    "request_ids": "request_ids",
    "context_tokens": "context_tokens",
    "row_caps": "max_draft_tokens",
}
_STEP_COUNTS = ("num_prefills", "prefill_tokens", "prefill_context_tokens")
_DRAFTER_COLUMNS = ("lengths", "match_lengths", "lag")
_FOUND_MATRICES = ("confidence", "parents")  # of drafts that are known before the plan


def view_dict(view: BatchView) -> dict:
    """Return the view JSON-able. Fields that have their default are left out."""
    data: dict[str, Any] = {
        field: getattr(view, name).tolist() for name, field in _VIEW_COLUMNS.items()
    }
    data["drafters"] = columns_of(view.drafters, _DRAFTER_COLUMNS)
    for number, drafter in enumerate(view.drafters):
        for name in _FOUND_MATRICES:
            if (matrix := getattr(drafter, name)) is not None:
                data[f"{name}_{number}"] = matrix_or_null(matrix)
    data |= {name: int(getattr(view, name)) for name in _STEP_COUNTS}
    data["prefill_attended_tokens"] = float(view.prefill_attended_tokens)
    if view.num_waiting:
        data["num_waiting"] = int(view.num_waiting)
    if view.draft_token_budget != UNLIMITED:
        data["draft_token_budget"] = int(view.draft_token_budget)
    if view.class_ids.any():
        data["class_ids"] = view.class_ids.tolist()
    if (view.weights != 1.0).any():
        data["weights"] = view.weights.tolist()
    return data


def read_view(fields: Fields) -> BatchView:
    """Return the inverse of view_dict. ValueError names the field and its problem."""
    request_ids = fields.integers("request_ids", None)
    num_rows = len(request_ids)
    columns = fields.integers("drafters", None, len(_DRAFTER_COLUMNS), num_rows)
    values: dict[str, Any] = {name: fields.integer(name) for name in _STEP_COUNTS} | {
        "class_ids": fields.optional(fields.integers, "class_ids", num_rows),
        "weights": fields.optional(fields.numbers, "weights", num_rows),
    }
    return BatchView(
        request_ids=request_ids,
        context_tokens=fields.integers("context_tokens", num_rows),
        row_caps=fields.integers("max_draft_tokens", num_rows),
        drafters=tuple(_read_drafter(fields, *each, num_rows) for each in enumerate(columns)),
        prefill_attended_tokens=fields.number("prefill_attended_tokens"),
        draft_token_budget=fields.integer("draft_token_budget", default=UNLIMITED),
        num_waiting=fields.integer("num_waiting", default=0),
        now=fields.number("now"),
        **values,
    )


def _read_drafter(fields: Fields, number: int, columns: np.ndarray, num_rows: int) -> DrafterView:
    confidence, parents = (f"{name}_{number}" for name in _FOUND_MATRICES)
    lengths, match_lengths, lag = columns
    return DrafterView(
        lengths,
        match_lengths,
        lag,
        confidence=fields.optional(fields.numbers, confidence, num_rows, None),
        parents=fields.optional(fields.parents, parents, num_rows),
    )


def columns_of(records: tuple, names: tuple[str, ...]) -> list:
    """Return the arrays of these names, one list of lists for each record."""
    return [[getattr(record, name).tolist() for name in names] for record in records]
