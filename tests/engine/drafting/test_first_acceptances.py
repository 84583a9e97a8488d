"""A head whose first drafts the target hardly ever accepts is said."""

import logging

import numpy as np
from test_head_drafter import make_core
from tiny_engine import generate

from smartspec.core.batch import Verification
from smartspec.engine.drafting.head.first_acceptances import NUM_DRAFTS, FirstAcceptances


def noted(num_right: int, num_drafts: int = NUM_DRAFTS) -> None:
    """In steps of four rows, the last of which has no draft."""
    first = FirstAcceptances("mine", (2, 6, 9))
    results = [Verification((1, 2), 1)] * num_right + [Verification((1,), 0)] * (
        num_drafts - num_right
    )
    for begin in range(0, num_drafts, 3):
        rows = results[begin : begin + 3]
        first.note(np.array([5] * len(rows) + [0]), [*rows, Verification((1,), 0)])


def test_hardly_any_accepted_draft_is_said_once(caplog):
    noted(num_right=1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "head mine: the target accepted a token of 1 of its first" in record.getMessage()
    assert "[2, 6, 9]" in record.getMessage()
    assert "set eagle_aux_hidden_state_layer_ids" in record.getMessage()


def test_others_are_not_said(caplog):
    noted(num_right=NUM_DRAFTS // 10)
    noted(num_right=0, num_drafts=NUM_DRAFTS - 3)
    assert not caplog.records


def test_a_random_head_is_found_out_in_an_engine(caplog):
    core = make_core(pause=0.0)
    for _ in range(3):
        generate(core)
    first = core.executor.drafters[0]._first
    assert first._num_drafts >= NUM_DRAFTS and first._num_accepted <= core.controller.num_accepted
    said = [record for record in caplog.records if record.name.endswith("first_acceptances")]
    assert len(said) == (first._num_accepted < 0.03 * first._num_drafts)
