"""JSON in texts that others wrote."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartspec.server.structured.json_text import MAX_DEPTH, may_begin_json, read_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1e999}', "1e999 is more than a float"),
        ('{"a": NaN}', "NaN"),
        ("-Infinity", "Infinity"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested"),
        ("[" * 10**5, "nested"),
        ("9" * 5000, "digits"),
        ("{", "Expecting"),
        ("{} {}", "more follows"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_json(text)


@given(VALUES)
def test_all_else_is_read(value):
    assert read_json(json.dumps(value)) == value
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None


@given(VALUES, st.sampled_from([None, 1]), st.sampled_from(["<", "}", " <", '"']))
def test_what_may_begin_json(value, indent, rest):
    text = json.dumps(value, indent=indent)
    assert all(may_begin_json(text[:end]) for end in range(len(text) + 1))
    assert not may_begin_json(text + rest)
