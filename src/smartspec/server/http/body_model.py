"""The base class and field types of all bodies."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, JsonValue, model_validator
from pydantic_core import core_schema

MAX_FIELDS = 128  # of one object: more than twice what any has


class Body(BaseModel):
    """Strict types, finite numbers, no unknown names; null means not given, as everywhere in OpenAI's interface."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object) -> object:
        if isinstance(data, dict):
            if len(data) > MAX_FIELDS:
                raise ValueError(f"must have at most {MAX_FIELDS} fields, got {len(data)}")
            return {name: value for name, value in data.items() if value is not None}
        return data


def _has_finite_numbers(value: dict) -> dict:
    """Refuses 1e999: Python parses it as infinity, which our JSON answers cannot hold."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("must hold no number that is more than a float can hold") from error
    return value


# An object of any kind.
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_has_finite_numbers)]


def only(*accepted: object) -> GetPydanticSchema:
    """A field that is accepted only with values that request nothing."""

    def check(value: object) -> object:
        if not any(type(value) is type(each) and value == each for each in accepted):
            raise ValueError(f"unsupported: only {' or '.join(map(repr, accepted))} is accepted")
        return value

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_plain_validator_function(check),
        lambda schema, handler: {"enum": list(accepted)},
    )


def never(why: str) -> GetPydanticSchema:
    """A field that is refused with the reason, also where unknown fields are ignored: an answer without it is wrong."""

    def refuse(value: object) -> object:
        raise ValueError(f"unsupported: {why}")

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_plain_validator_function(refuse),
        lambda schema, handler: {"type": "null"},
    )


def ranged(default: float, low: float, high: float) -> Any:
    """A field with a range for the OpenAPI document. SamplingParams checks the range."""
    return Field(default, json_schema_extra={"minimum": low, "maximum": high})


def given(name: str, kind: str) -> dict:
    """A JSON schema: the field is there, and not null or an empty list."""
    return {"required": [name], "properties": {name: {"type": kind} | ({"minItems": 1} if kind == "array" else {})}}


class TextPart(BaseModel):
    """A part of a content."""

    type: Literal["text"]
    text: str


def join_text_parts(content: object) -> object:
    """Content in parts is text if every part is."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('content parts must be {"type": "text", "text": ...}: this server reads text alone')
    return "".join(texts)
