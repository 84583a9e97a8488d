"""What all bodies have in common."""

from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator

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


def only(*accepted: object) -> PlainValidator:
    """A field that may be given, as long as it asks for nothing."""

    def check(value: object) -> object:
        if not any(type(value) is type(each) and value == each for each in accepted):
            raise ValueError(f"unsupported: only {' or '.join(map(repr, accepted))} is accepted")
        return value

    return PlainValidator(check)
