"""JSON in texts that others wrote."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartspec.server.structured.json_text import MAX_DEPTH, JsonPrefix, read_json

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


@given(st.data())
def test_a_beginning_of_json_in_any_pieces(data):
    text = json.dumps(data.draw(VALUES), indent=data.draw(st.sampled_from([None, 1])))
    prefix, at = JsonPrefix(), 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        assert prefix.feed(text[at : at + size]) == len(text[at : at + size]), "it may all be JSON"
        at += size
    rest = data.draw(st.sampled_from(["<", "}", ",", " <"]))
    assert prefix.feed(rest) == len(rest) - 1, "but this cannot follow"


@given(st.text(alphabet='"\\{}[]:,1tn <\x01', max_size=12))
def test_what_cannot_be_json(text):
    """json.loads says of a beginning of JSON that it ends too early, of anything else where it is
    wrong."""
    end = JsonPrefix().feed(text)
    if end == len(text):
        return
    for more in ("", '"', "]", "}", ":1}", '":1}', "1"):
        with pytest.raises(ValueError):
            json.loads(text[: end + 1] + more)
