"""Fields that request structured output, and their grammars."""

import json

import numpy as np
import pytest
from fake_server import check_error, compiled, form_of, grammar_compiler, user

from smartspec.server.structured.fields import MAX_SCHEMA_BYTES, StructuredOutputs, json_grammar
from smartspec.server.structured.grammars import GrammarCompiler

USER = user("Hello there")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_grammar_follows_tokens(tokenizer):
    grammar = grammar_compiler(tokenizer).compile(json_grammar(SCHEMA))
    token_ids = [*tokenizer('{"a": 12}')["input_ids"], tokenizer.eos_token_id]
    for end, token_id in enumerate(token_ids):
        assert grammar.allowed(token_ids[:end])[token_id]
        assert not grammar.allowed(token_ids[:end])[tokenizer(" the")["input_ids"][0]]
    assert np.flatnonzero(grammar.allowed(token_ids[:-1])).tolist() == [tokenizer.eos_token_id]
    assert grammar.num_allowed(token_ids) == len(token_ids)
    assert grammar.forced() == [], "it may begin in several ways"
    named = compiled(tokenizer, StructuredOutputs(regex="The capital of [a-z]+"))
    assert tokenizer.decode(named.forced()) == "The capital of"
    assert grammar.num_allowed([*token_ids[:3], 500, *token_ids[3:]]) == 3
    assert grammar.allowed([500]).all(), "a place that is never reached"


def test_descriptions_are_no_part_of_a_schemas_size(tokenizer):
    """OpenAI's limit of 120,000 characters counts names, enum and const values."""
    properties = {
        f"field_{i:03d}": {"type": "integer", "description": 'What "it" says. ' * 60}
        for i in range(300)
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    assert len(json.dumps(schema)) > 2 * MAX_SCHEMA_BYTES
    grammar_compiler(tokenizer).compile(json_grammar(schema))
    with pytest.raises(ValueError, match="longer than"):
        json_grammar({"enum": ['"description": "x"' * MAX_SCHEMA_BYTES]})


def test_a_tokenizer_that_cannot_be_read_leaves_the_rest_to_be_served(tokenizer):
    compiler = GrammarCompiler(tokenizer, 3, frozenset({2}))  # fewer tokens than it has
    with pytest.raises(ValueError, match="tokenizer"):
        compiler.compile(json_grammar(SCHEMA))


IMPOSSIBLE = {"type": "string", "minLength": 5, "maxLength": 3}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": form_of(IMPOSSIBLE)}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "foo"}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        pytest.param({"guided_json": {"const": "x" * MAX_SCHEMA_BYTES}}, "guided_json", id="long"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        ({"guided_regex": "a", "min_tokens": 3}, "guided_regex"),
        ({"guided_regex": "(("}, "guided_regex"),
        ({"guided_regex": r"[^\s\S]"}, "guided_regex"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_requests_are_refused_by_name(server, fields, param):
    check_error(server.chat(messages=[USER], **fields), 400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": form_of(SCHEMA)},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"guided_json": json.dumps(SCHEMA)},
        {"guided_choice": ["a", "b"]},
        {"guided_regex": "[a-z]+"},
    ],
    ids=str,
)
def test_each_field_reaches_the_engine(server, fields, monkeypatch):
    seen = server.recorded(monkeypatch)
    assert server.chat(messages=[USER], n=2, max_tokens=2, **fields).status_code == 200
    assert server.complete(prompt="a", max_tokens=2, **fields).status_code == 200
    grammars = [request.grammar for request in seen]
    assert len(grammars) == 3 and None not in grammars and len(set(map(id, grammars))) == 3
