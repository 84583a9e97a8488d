"""Schemas of arguments: what their grammar makes satisfies the schema as it was given, and is made.
Of plain objects it makes no properties but those that are named; composed ones are as open as they
come, and oneOf holds as anyOf."""

import itertools
import json
import random

import numpy as np
import pytest
from fake_server import allows, check_error, compiled, function, grammar_compiler, user
from jsonschema import Draft202012Validator

from smartspec.server.openai.chat_body import ChatBody
from smartspec.server.structured.fields import JSON_OPTIONS, MAX_SCHEMA_BYTES
from smartspec.server.structured.grammar_worker import ARGUMENTS

OPTIONS = {"x-guidance": JSON_OPTIONS | {"coerce_one_of": True}}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def obj(*required: str, **properties) -> dict:
    return {"type": "object", "properties": properties, "required": list(required)}


A, B, C = obj("a", a=DIGIT), obj("b", b=DIGIT), obj("c", c=DIGIT)
# as pydantic has tags
CAT, DOG = obj(kind={"const": "cat"}, a=DIGIT), obj(kind={"const": "dog"}, b=DIGIT)

# Each with arguments that are made, and some that are not: others than named ones, or what the
# schema excludes.
SCHEMAS = {
    "allOf": ({"allOf": [A, B]}, [{"a": 1, "b": 2}], [{"a": 1}]),
    "a reference beside properties": (
        {"$defs": {"Base": A}, "$ref": "#/$defs/Base", **B},
        [{"a": 1, "b": 2}],
        [{"b": 2}],
    ),
    "common properties beside oneOf": (
        A | {"oneOf": [B, {"properties": {"c": DIGIT}, "required": ["c"]}]},
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
        [{"a": 1}],
    ),
    "alternatives told by a tag that may be left out": (
        obj("pet", pet={"oneOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}]})
        | {"$defs": {"0": CAT, "1": DOG}},
        [{"pet": {"kind": "cat", "a": 1}}, {"pet": {"kind": "dog"}}],
        [{"pet": {"kind": "dog", "a": 1}}],
    ),
    "alternatives of types": (
        obj("x", x={"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}, A]}),
        [{"x": "s"}, {"x": 1}, {"x": {"a": 1}}],
        [{"x": {"a": 1, "b": 1}}],
    ),
    "a reference or null": (
        obj("x", x={"anyOf": [{"$ref": "#/definitions/A"}, {"type": "null"}]})
        | {"definitions": {"A": A}},
        [{"x": {"a": 1}}, {"x": None}],
        [{"x": {"a": 1, "b": 1}}, {"x": {}}],
    ),
    "composed items": (
        obj("xs", xs={"type": "array", "items": {"allOf": [A, {"$ref": "#/$defs/B"}]}})
        | {"$defs": {"B": B}},
        [{"xs": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}],
        [{"xs": [{"a": 1}]}],
    ),
    "items that differ": (
        obj("xs", xs={"type": "array", "prefixItems": [A, DIGIT], "items": False}),
        [{"xs": [{"a": 1}, 2]}],
        [{"xs": [{"a": 1, "b": 1}, 2]}],
    ),
    "recursive from the root": (
        obj("a", a=DIGIT, kids={"type": "array", "items": {"$ref": "#"}}),
        [{"a": 1, "kids": [{"a": 2}]}],
        [{"a": 1, "kids": [{"b": 2}]}],
    ),
    "closed by itself, and composed": (
        obj(a=DIGIT, b=DIGIT) | {"additionalProperties": False, "allOf": [{"required": ["a"]}]},
        [{"a": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1, "c": 1}],
    ),
    "an alternative that is open": (
        {"anyOf": [A, B | {"additionalProperties": {"type": "string"}}]},
        [{"a": 1}, {"b": 1, "z": "s"}],
        [{"a": 1, "z": "s"}],
    ),
    "unevaluatedProperties": (
        obj("x", x=A | {"unevaluatedProperties": False}) | {"unevaluatedProperties": True},
        [{"x": {"a": 1}}],
        [{"x": {"a": 1, "z": 1}}],
    ),
    "required and not described": (obj("a", "z", a=DIGIT), [{"a": 1, "z": "any"}], [{"a": 1}]),
    "patterns": (
        obj(a=DIGIT) | {"patternProperties": {"^x": DIGIT}},
        [{"a": 1, "x1": 2}],
        [{"a": 1, "y": 2}],
    ),
    "an argument named additionalProperties": (
        obj("additionalProperties", additionalProperties=DIGIT, properties={"type": "object"}),
        [{"additionalProperties": 1}, {"additionalProperties": 1, "properties": {"free": [1]}}],
        [{"additionalProperties": 1, "b": 1}],
    ),
    "constants and examples that look like schemas": (
        obj("q", q={"const": {"properties": {"a": 1}}, "examples": [{"properties": {}}]}),
        [{"q": {"properties": {"a": 1}}}],
        [{"q": {"properties": {"a": 1}, "additionalProperties": False}}],
    ),
    "a map": (
        obj(
            "env",
            env={"type": "object", "additionalProperties": {"type": "string", "maxLength": 4}},
        ),
        [{"env": {}}, {"env": {"K": "v"}}],
        [{"env": {"K": 1}}],
    ),
    "a reference to a place": (
        obj("x", x={"$ref": "#/properties/y~1z/items"}, **{"y/z": {"type": "array", "items": A}}),
        [{"x": {"a": 1}}],
        [{"x": {"a": 1, "b": 1}}],
    ),
    "a name of its own": ({"$schema": "x", "$id": "https://a.example/x", **A}, [{"a": 1}], [{}]),
}
NO_PARAMETERS = (
    None,
    {},
    {"type": "object"},
    {"type": "object", "properties": {}, "title": "Nothing"},
    {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    {"type": ["object", "null"]},
)


def is_made(grammar, tokenizer, value: dict) -> bool:
    """Whether the grammar makes the value, its properties in whatever order."""
    for items in itertools.permutations(value.items()):
        if allows(grammar, tokenizer, json.dumps(dict(items)) + tokenizer.eos_token):
            return True
    return False


def grammar_of(schema: dict, tokenizer):
    """Of the arguments, without a call around them."""
    parts = (
        {"lark_grammar": f"start: @{ARGUMENTS}0"},
        {"name": f"{ARGUMENTS}0", "json_schema": schema | OPTIONS},
    )
    return grammar_compiler(tokenizer).compile(json.dumps({"grammars": parts}))


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_have_solutions_and_nothing_else(tokenizer, name):
    schema, made, others = SCHEMAS[name]
    grammar, given = grammar_of(schema, tokenizer), Draft202012Validator(schema)
    for value in made:
        given.validate(value)
        assert is_made(grammar, tokenizer, value), value
    for value in others:
        assert not is_made(grammar, tokenizer, value), value


# Any value at all: texts of random tokens are then nested deep, and take minutes.
FREE = {
    "required and not described",
    "patterns",
    "an argument named additionalProperties",
    "a map",
    "an alternative that is open",
    "unevaluatedProperties",
    # as anyOf
    "alternatives told by a tag that may be left out",
    # composed
    "allOf",
    "a reference beside properties",
    "common properties beside oneOf",
}


@pytest.fixture(scope="module")
def closing(tokenizer):
    """Whether a token ends something: bool [V]."""
    texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
    return np.array([text == tokenizer.eos_token or set(text) <= set('}]"') for text in texts])


@pytest.mark.parametrize("name", sorted(SCHEMAS.keys() - FREE))
def test_whatever_a_model_writes_satisfies_the_schema(tokenizer, closing, name):
    """Texts of random tokens that the grammar allows."""
    schema = SCHEMAS[name][0]
    chance, closed = random.Random(name), grammar_of(schema, tokenizer)
    num_whole = 0
    for _ in range(12):
        grammar, token_ids = closed.copy(), []
        for _ in range(80):
            allowed = grammar.allowed()
            ends = np.flatnonzero(allowed & closing)
            is_end = len(ends) and chance.random() < 0.3
            token_ids.append(int(chance.choice(ends if is_end else np.flatnonzero(allowed))))
            if token_ids[-1] == tokenizer.eos_token_id:
                num_whole += 1
                Draft202012Validator(schema).validate(json.loads(tokenizer.decode(token_ids[:-1])))
                break
            grammar.accept(token_ids[-1:])
    assert num_whole > 0


@pytest.mark.parametrize("schema", NO_PARAMETERS, ids=str)
def test_a_tool_without_parameters_is_called_with_nothing(tokenizer, schema):
    tools = [function("f", schema)]
    body = ChatBody(messages=[user("Call it")], tools=tools, tool_choice="required")
    grammar = compiled(tokenizer, body.grammars()["tool_choice"])
    for arguments, is_right in (
        ("{}", True),
        ('{"a": 1}', False),
        ('"an essay"', False),
        ("null", False),
    ):
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        assert allows(grammar, tokenizer, text) == is_right, arguments


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "must be an object"),
        ({"type": 5}, "must be an object"),
        ({"$ref": "#/$defs/Nothing"}, "/$defs/Nothing"),
        ({"$ref": "https://example.com/schema.json"}, "https://example.com/schema.json"),
        ({"allOf": [A | {"unevaluatedProperties": False}, B]}, "unevaluatedProperties"),
        *(
            (A | {key: B}, f'["{key}"]')
            for key in ("not", "if", "then", "else", "contains", "dependencies")
        ),
        (obj(a={"type": "string", "pattern": "["}), "regex"),
    ],
    ids=str,
)
def test_schemas_that_cannot_be_held_to_are_refused_with_a_remedy(server, schema, message):
    tools = [function("f", schema)]
    answer = server.chat(messages=[user("a")], tools=tools, tool_choice="required")
    check_error(answer, 400, "tool_choice", message)


def test_large_schemas_are_refused_before_they_are_closed():
    tools = [function("f", obj(a={"const": "x" * MAX_SCHEMA_BYTES}))]
    body = ChatBody(messages=[user("a")], tools=tools, tool_choice="required")
    with pytest.raises(ValueError, match="longer than"):
        body.grammars()["tool_choice"].definition()
