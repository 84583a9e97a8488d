"""The base class and field types of all bodies."""

import json
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    JsonValue,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

MAX_FIELDS = 128  # of one object: more than twice what any has


@dataclass
class BodyContext:
    """The rules for reading one body."""

    strict: bool = False  # unknown fields, tools and items are refused instead of left out
    ignored: set[str] = field(default_factory=set)  # names of those that were left out


def is_strict(info: ValidationInfo) -> bool:
    """info: its context is a BodyContext; none where the server makes a body itself."""
    return info.context is not None and info.context.strict


def ignore(info: ValidationInfo, names: Set[str]) -> None:
    """Notes the names of what is left out."""
    if info.context is not None:
        info.context.ignored |= names


class Body(BaseModel):
    """Strict types, finite numbers; null means not given, as everywhere in OpenAI's interface.
    Unknown names are ignored, see parsing.BodyParser."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:
            raise ValueError(f"must have at most {MAX_FIELDS} fields, got {len(data)}")
        given = {name: value for name, value in data.items() if value is not None}
        if unknown := given.keys() - _names(cls):
            ignore(info, unknown)
        return given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Says of every field that may be left out that it may be null."""
        described = handler(schema)
        fields = handler.resolve_ref_schema(described)
        for name, kind in fields["properties"].items():
            is_needed = name in fields.get("required", ())
            if not is_needed and {"type": "null"} not in kind.get("anyOf", ()):
                fields["properties"][name] = {"anyOf": [kind, {"type": "null"}]}
        return described


@cache
def _names(kind: type[Body]) -> Set[str]:
    """The names of a body's fields, as they are sent."""
    return {field.alias or name for name, field in kind.model_fields.items()}


def _has_finite_numbers(value: dict) -> dict:
    """Refuses 1e999: Python parses it as infinity, which our JSON answers cannot hold."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("must hold no number that is more than a float can hold") from error
    return value


# An object of any kind.
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_has_finite_numbers)]
# Of a field that changes no text: any value.
Ignored = object


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
    """A field that is refused with the reason: an answer without it would be wrong."""

    def refuse(value: object) -> object:
        raise ValueError(f"unsupported: {why}")

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_plain_validator_function(refuse),
        lambda schema, handler: {"type": "null"},
    )


def ranged(default: float, low: float, high: float) -> Any:
    """A field with a range for the OpenAPI document. SamplingParams checks the range."""
    return Field(default, json_schema_extra={"minimum": low, "maximum": high})


def check_needed(body: Body, what: str, names: Iterable[str]) -> None:
    """Raises ValueError naming a field that this type of the body lacks. what: the body is."""
    for name in names:
        if getattr(body, name) is None:
            raise ValueError(f"{what} needs {name}")
