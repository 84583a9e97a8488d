"""Decision records survive the way to JSON and back; what is wrong with a line is said with line
and field."""

import json
from dataclasses import asdict, replace

import factories
import numpy as np
import pytest
from factories import make_outcome
from hypothesis import given
from hypothesis import strategies as st

from smartspec.control import (
    BatchView,
    DecisionRecord,
    DrafterSpec,
    DrafterView,
    FreeTests,
    LogHeader,
    Plan,
)

K = 4


def make_record(num_rows: int = 3, seed: int = 0, detailed: bool = False) -> DecisionRecord:
    """A plausible record; detailed: with everything that may be left out."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, K + 1, num_rows)
    accepted = random.integers(0, lengths + 1)
    options, extra = {}, {}
    if detailed:
        confidence = random.random((num_rows, K)).round(4)
        confidence[np.arange(K) >= lengths[:, None]] = np.nan
        options = {
            "weights": random.random(num_rows) + 0.5,
            "class_ids": random.integers(1, 5, num_rows),
            "draft_token_budget": 1000,
            "num_waiting": 3,
        }
        extra = {
            "confidence": confidence,
            "extras": {"divergence": confidence},
            "free_tests": (
                FreeTests(np.zeros_like(lengths), lengths, accepted),
                FreeTests(*np.ones((3, num_rows), int)),
            ),
        }
    view = BatchView(
        request_ids=np.arange(num_rows) + 100,
        context_tokens=random.integers(1, 500, num_rows),
        row_caps=np.full(num_rows, K),
        drafters=tuple(
            DrafterView(lengths, *random.integers(0, 9, (2, num_rows))) for _ in range(2)
        ),
        num_prefills=1,
        prefill_tokens=17,
        prefill_context_tokens=30,
        prefill_attended_tokens=374.5,
        now=12.25,
        **options,
    )
    plan = Plan(lengths, np.where(lengths > 0, random.integers(0, 2, num_rows), -1))
    return factories.make_record(
        make_outcome(view, plan, accepted=accepted, **extra),
        replace(plan, reason="probe" if detailed else None),
        goodput=210.5,
        survival=np.cumprod(np.full((num_rows, K), 0.5), axis=1).round(4),
    )


@given(st.integers(1, 6), st.integers(0, 50), st.booleans())
def test_json_and_back(num_rows, seed, detailed):
    record = make_record(num_rows, seed, detailed)
    text = record.to_json()
    assert "\n" not in text
    again = DecisionRecord.from_json(text)
    np.testing.assert_equal(asdict(again), asdict(record))
    assert again.to_json() == text


def test_a_step_of_prefills_alone_goes_to_json_and_back():
    again = DecisionRecord.from_json(make_record(num_rows=0).to_json())
    assert again.view.num_rows == 0 and again.survival.shape == (0, 0)
    assert again.view.prefill_tokens == 17


def test_defaults_take_no_space():
    data = json.loads(make_record().to_json())
    assert not {
        "weights",
        "class_ids",
        "draft_token_budget",
        "confidence",
        "free_tests",
    } & set(data)


def test_the_view_as_planned_is_kept():
    record = make_record()
    clamped = replace(record.view, now=99.0)
    assert factories.make_record(record.outcome, view=clamped).view.now == 99.0


def test_prefill_is_what_ran_and_not_what_was_planned():
    record = make_record()
    planned = replace(record.view, num_prefills=0, prefill_tokens=0)
    most = record.view.num_rows + record.view.num_prefills + int(record.outcome.accepted.sum())
    outcome = replace(record.outcome, num_emitted=most)
    made = factories.make_record(outcome, view=planned).to_json()
    assert DecisionRecord.from_json(made).view.prefill_tokens == record.view.prefill_tokens == 17


MISSING = object()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("format", 99, ["'format' is 99", "reads 2: record it anew"]),
        ("format", MISSING, ["'format' is None"]),
        ("request_ids", MISSING, ["'request_ids'", "n integers", "nothing"]),
        ("request_ids", [1, "a", 3], ["'request_ids'", "'a'"]),
        ("context_tokens", [1, 2], ["'context_tokens'", "3 integers", "[1, 2]"]),
        ("context_tokens", [1, 2, -3], ["context_tokens", "-3"]),
        ("drafters", [[[1], [2], [3]]], ["'drafters'", "3 x 3"]),
        ("drafter", [7, 7, 7], ["drafters [7", "there are 2"]),
        ("drafted", [1, 2, True], ["'drafted'", "True"]),
        ("drafted", [1, 2, 10**30], ["'drafted'"]),
        ("accepted", [9, 9, 9], ["row 0", "accepted 9"]),
        ("lengths", [-1, 0, 0], ["lengths", "-1"]),
        ("survival", [[0.5], [0.5, 0.5], [0.5]], ["'survival'", "3 x n numbers"]),
        ("seconds", [0.1, 0.0], ["'seconds'", "3 numbers"]),
        ("seconds", [0.0, 0.0, 0.0], ["target seconds are 0.0"]),
        ("seconds", [0.0, None, 0.0], ["target seconds are nan"]),
        ("num_emitted", 1.5, ["'num_emitted'", "1.5"]),
        ("goodput", "fast", ["'goodput'", "fast"]),
        ("goodput", 10**400, ["'goodput'"]),
        ("reason", 5, ["'reason'", "5"]),
        ("now", None, ["'now'"]),
    ],
)
def test_a_bad_field_is_named_with_its_line(name, value, words):
    data = json.loads(make_record().to_json())
    data.pop(name) if value is MISSING else data.update({name: value})
    with pytest.raises(ValueError, match=r"decision log, line 7: ") as caught:
        DecisionRecord.from_json(json.dumps(data), line=7)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "nonsense", '{"format": 2}', "[" * 100_000, "\x00"]
)
def test_lines_that_are_no_record(text):
    with pytest.raises(ValueError, match="line 3"):
        DecisionRecord.from_json(text, line=3)


def test_header_and_back():
    drafters = (
        DrafterSpec("lookup", match_lengths=(0, 2, 3)),
        DrafterSpec("small-model", has_passes=True, context_limit=260),
    )
    header = LogHeader(
        "some-model", "goodput", K, drafters, {"format": 3, "target": {"knots": [1.0]}}
    )
    assert LogHeader.from_json(header.to_json()) == header
    with pytest.raises(ValueError, match=r"line 1.*'header'"):
        LogHeader.from_json(make_record().to_json())
    with pytest.raises(ValueError, match="'max_draft_tokens' is 0"):
        LogHeader.from_json(replace(header, max_draft_tokens=0).to_json())
    for wrong in (None, "lookup", [{"name": "lookup"}]):
        with pytest.raises(ValueError, match=r"line 1.*'drafters'"):
            LogHeader.from_json(json.dumps(json.loads(header.to_json()) | {"drafters": wrong}))
