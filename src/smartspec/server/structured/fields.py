"""Structured output: the fields of a body that request it, as the definition of a grammar."""

import json
import re
from typing import Annotated, Literal, Self

from llguidance import LLMatcher
from pydantic import BeforeValidator, Field, model_validator

from smartspec.server.http.body_model import Body, JsonObject
from smartspec.server.structured.json_text import read_json

MAX_SCHEMA_BYTES = 2**17  # without what says nothing of the text; OpenAI takes 120,000 characters
_ANNOTATION = re.compile(r'"(?:title|description|\$comment)": "(?:[^"\\]|\\.)*+",?')
MAX_REGEX_CHARACTERS = 2**12
MAX_CHOICES = 1024
MAX_CHOICE_CHARACTERS = 1024
# As programs write it, in lines or not: small models would add spaces without end where they may.
JSON_OPTIONS = {"whitespace_pattern": r" |\n[ \t]{0,32}"}
ANY_OBJECT = {"type": "object"}
# The end of the thought is the first mark; the spaces after it are no part of the answer.
_OPEN = "start: inner /\\s{0,8}/ @after\ninner[lazy]: /(?s:.*)<\\/think>/"
_MAYBE = f"start: (/\\s{{0,8}}<think>/ inner /\\s{{0,8}}/)? @after\n{_OPEN.splitlines()[1]}"


def _parsed(schema: object) -> object:
    """A schema may be given as text, as vLLM takes it."""
    if not isinstance(schema, str):
        return schema
    try:
        return read_json(schema)
    except ValueError as error:
        raise ValueError(f"must be a JSON schema: {error}") from error


Schema = Annotated[JsonObject, BeforeValidator(_parsed, json_schema_input_type=JsonObject | str)]
Regex = Annotated[str, Field(min_length=1, max_length=MAX_REGEX_CHARACTERS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]


class JsonSchema(Body):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: Schema = Field(ANY_OBJECT, alias="schema")
    strict: bool | None = None  # always


class ResponseFormat(Body):
    """OpenAI's. schema beside the type, as llama.cpp and Together have it, is the same as in
    json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _schema_has_its_place(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("schema") is None or data.get("type") == "text":
            return data
        rest = {name: value for name, value in data.items() if name != "schema"}
        return (
            {"json_schema": {"name": "answer", "schema": data["schema"]}}
            | rest
            | {"type": "json_schema"}
        )

    @model_validator(mode="after")
    def _schema_belongs_to_its_type(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError('json_schema and type "json_schema" need each other')
        return self

    def definition(self) -> str:
        """The grammar of any format but plain text. Raises ValueError if it is too long."""
        return json_grammar(self.schema)

    @property
    def schema(self) -> dict:
        return ANY_OBJECT if self.json_schema is None else self.json_schema.schema_


class StructuredOutputs(Body):
    """vLLM's: one of them."""

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Regex | None = None
    choice: Choices | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1 or self.json_object is False:
            raise ValueError("must have exactly one of json, json_object, regex and choice")
        return self

    def definition(self) -> str:
        if self.regex is not None:
            return LLMatcher.grammar_from_regex(self.regex)
        if self.choice is not None:
            quoted = (json.dumps(choice, ensure_ascii=False) for choice in self.choice)
            return json.dumps({"grammars": [{"lark_grammar": "start: " + " | ".join(quoted)}]})
        return json_grammar(ANY_OBJECT if self.json_ is None else self.json_)


class StructuredFields(Body):
    """The fields of a body that request structured output."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None

    def grammars(self) -> dict[str, ResponseFormat | StructuredOutputs]:
        """The requested structure, by the field's name."""
        requested: dict[str, ResponseFormat | StructuredOutputs] = {}
        if self.response_format is not None and self.response_format.type != "text":
            requested["response_format"] = self.response_format
        if self.structured_outputs is not None:
            requested["structured_outputs"] = self.structured_outputs
        for kind in ("json", "regex", "choice"):
            if (value := getattr(self, f"guided_{kind}")) is not None:
                requested[f"guided_{kind}"] = StructuredOutputs(**{kind: value})
        return requested


def json_grammar(schema: dict) -> str:
    """Texts that are JSON of this schema. Raises ValueError if it is too long."""
    text = json.dumps(schema)
    check_schema_size(text)
    return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)


def check_schema_size(text: str) -> None:
    """Raises ValueError if there is more of JSON schemas than is read. text: as json.dumps writes
    it."""
    size = len(_ANNOTATION.sub("", text))
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(
            f"a JSON schema of {size} bytes, descriptions left out, is longer than the "
            f"{MAX_SCHEMA_BYTES} that are read"
        )


def after_thought(definition: str, is_open: bool) -> str:
    """The grammar of a text that may begin with a thought, which is free, as in vLLM's structured
    output of reasoning. definition: as from LLMatcher.grammar_from_*, whose text the answer is.
    is_open: the prompt has begun the thought; otherwise the model may begin one."""
    first, *others = json.loads(definition)["grammars"]
    thought = {"lark_grammar": _OPEN if is_open else _MAYBE}
    return json.dumps({"grammars": [thought, first | {"name": "after"}, *others]})
