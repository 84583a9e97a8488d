"""The bodies of the OpenAI endpoints, checked strictly: a misspelt name or a wrong value is refused."""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import (
    MAX_CLASS_NAME,
    MAX_TPOT_SECONDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NO_OPTIONS,
    SpeculationOptions,
)
from smartspec.server.errors import APIError

MAX_CHOICES = 128
MIN_TPOT_MS = 0.001  # a microsecond
SAMPLING_OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
)
PROMPT_SHAPES = (
    "must be a string, a list of strings, a list of token ids or a list of such lists, and none of them empty"
)


class Body(BaseModel):
    """Strict types, finite numbers, no unknown names; null means not given, as everywhere in OpenAI's interface."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object) -> object:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


class StreamOptions(Body):
    include_usage: bool = False


class SpeculationBody(Body):
    """Our own extension, see core.speculation. Ranges are checked here as well, so that the parameter is named."""

    workload_class: str | None = Field(None, min_length=1, max_length=MAX_CLASS_NAME)
    max_draft_tokens: int | None = Field(None, ge=0, lt=2**31)
    weight: float = Field(1.0, ge=MIN_WEIGHT, le=MAX_WEIGHT)
    tpot_target_ms: float | None = Field(None, gt=MIN_TPOT_MS, le=1000 * MAX_TPOT_SECONDS)

    def options(self) -> SpeculationOptions:
        return SpeculationOptions(
            workload_class=self.workload_class,
            max_draft_tokens=self.max_draft_tokens,
            weight=self.weight,
            tpot_target_seconds=None if self.tpot_target_ms is None else self.tpot_target_ms / 1000,
        )


class GenerationBody(Body):
    """What both endpoints have in common. The ranges of sampling options are checked by SamplingParams."""

    model: str | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = Field(0, lt=2**31)
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    speculation: SpeculationBody | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def speculation_options(self) -> SpeculationOptions:
        return NO_OPTIONS if self.speculation is None else self.speculation.options()

    def sampling_params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """Raises APIError naming the option that is out of its range."""
        options = {name: getattr(self, name) for name in SAMPLING_OPTIONS}
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                logprobs=logprobs,
                stop=tuple(self.stop),
                stop_token_ids=tuple(self.stop_token_ids),
                **options,
            )
        except ValueError as error:
            raise APIError(400, str(error), param=str(error).split()[0], code="invalid_value") from error


def _to_prompts(value: object) -> list[str | list[int]]:
    if isinstance(value, str) or _are_token_ids(value):
        value = [value]
    if isinstance(value, list) and value and all(isinstance(p, str) or _are_token_ids(p) for p in value) and all(value):
        return value
    raise ValueError(PROMPT_SHAPES)


def _are_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


class CompletionBody(GenerationBody):
    """POST /v1/completions. prompt: one or several prompts, each a text or a list of token ids."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_to_prompts)]
    logprobs: int | None = None
    echo: Literal[False] = False


def _join_text_parts(content: object) -> object:
    """Content in parts is text if every part is."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('content parts must be {"type": "text", "text": ...}: this server reads text alone')
    return "".join(texts)


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_join_text_parts)]
    name: str | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self


AnyBody = TypeVar("AnyBody", bound=Body)


def parse_body(kind: type[AnyBody], body: bytes) -> AnyBody:
    """Raises APIError 400 for anything that is not a valid body of this kind, naming the parameter at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "json_invalid":
            raise APIError(400, f"the body is not valid JSON in UTF-8 ({message})", code="invalid_json")
        case "extra_forbidden":
            raise APIError(400, f"unknown or unsupported parameter {param!r}", param, "unknown_parameter")
        case "missing":
            raise APIError(400, f"{param} is required", param, "missing_parameter")
        case "value_error" if param is None:
            raise APIError(400, message, message.split()[0], "invalid_value")
        case _:
            got = repr(first["input"])
            got = got if len(got) <= 80 else got[:77] + "..."
            raise APIError(400, f"{param or 'the body'}: {message}, got {got}", param, "invalid_value")


def _path(location: tuple[str | int, ...]) -> str | None:
    """("messages", 0, "role") -> "messages[0].role"."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or None
