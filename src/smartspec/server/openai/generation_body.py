"""The bodies of the OpenAI endpoints, checked strictly: a misspelt name or a wrong value is refused."""

import reprlib
from dataclasses import replace
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
    model_validator,
)

from smartspec.core.origin import Origin
from smartspec.core.sampling_params import MAX_LOGPROBS, MIN_REPETITION_PENALTY, SamplingParams
from smartspec.core.speculation import (
    MAX_CLASS_NAME,
    MAX_TPOT_SECONDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NO_OPTIONS,
    SpeculationOptions,
)
from smartspec.server.http.body_model import (
    MAX_FIELDS,
    Body,
    JsonObject,
    TextPart,
    given,
    join_text_parts,
    only,
    ranged,
)
from smartspec.server.http.body_parts import check_num_parts
from smartspec.server.http.errors import APIError
from smartspec.server.openai.harmless import HarmlessChatFields, HarmlessFields
from smartspec.server.openai.tools import MAX_CALLS, CalledTool, CallGrammar, ToolFields
from smartspec.server.structured.fields import ResponseFormat, StructuredFields, StructuredOutputs

MAX_CHOICES = 128
MAX_MESSAGES = 4096
MAX_STOP_TOKEN_IDS = 1024
MAX_RULED_TOKENS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256  # of one
MAX_REQUEST_ID = 128  # characters
MAX_CACHE_SALT = 256  # characters
MAX_SHOWN = 80  # characters of a value in an error
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
    "min_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
PROMPT_SHAPES = (
    "must be a string, a list of strings, a list of token ids or a list of such lists, and none of them empty"
)


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # never done


class SpeculationBody(Body):
    """Our own extension, see core.speculation. Ranges are checked here as well, so that the parameter is named."""

    workload_class: str | None = Field(None, min_length=1, max_length=MAX_CLASS_NAME)
    max_draft_tokens: int | None = Field(None, ge=0, lt=2**31)
    weight: float = Field(1.0, ge=MIN_WEIGHT, le=MAX_WEIGHT)
    tpot_target_ms: float | None = Field(None, gt=MIN_TPOT_MS, le=1000 * MAX_TPOT_SECONDS)
    report: bool = False
    ttft_target_ms: float | None = Field(None, gt=MIN_TPOT_MS, le=1000 * MAX_TPOT_SECONDS)

    def options(self) -> SpeculationOptions:
        return SpeculationOptions(
            workload_class=self.workload_class,
            max_draft_tokens=self.max_draft_tokens,
            weight=self.weight,
            tpot_target_seconds=None if self.tpot_target_ms is None else self.tpot_target_ms / 1000,
            ttft_target_seconds=None if self.ttft_target_ms is None else self.ttft_target_ms / 1000,
        )


def _to_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]


class GenerationBody(HarmlessFields, StructuredFields):
    """What both endpoints have in common. The ranges of sampling options are checked by SamplingParams."""

    model: str | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = None
    temperature: float = ranged(1.0, 0.0, 100.0)
    top_p: float = ranged(1.0, 0.0, 1.0)
    top_k: int = Field(0, lt=2**31)
    min_p: float = ranged(0.0, 0.0, 1.0)
    repetition_penalty: float = ranged(1.0, MIN_REPETITION_PENALTY, 100.0)
    presence_penalty: float = ranged(0.0, -2.0, 2.0)
    frequency_penalty: float = ranged(0.0, -2.0, 2.0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[str], FailFast(), BeforeValidator(_to_list, json_schema_input_type=str | list[str])] = Field(
        []
    )
    stop_token_ids: Annotated[list[int], FailFast()] = Field([], max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    logit_bias: dict[Annotated[int, Strict(False)], float] = Field({}, max_length=MAX_RULED_TOKENS)
    allowed_token_ids: Annotated[list[int], FailFast()] = Field([], min_length=1)
    bad_words: Annotated[list[BadWord], FailFast()] = Field([], max_length=MAX_BAD_WORDS)
    min_tokens: int = Field(0, ge=0)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    request_id: str | None = Field(None, min_length=1, max_length=MAX_REQUEST_ID, pattern=r"^[\w.:-]+$")
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT)
    speculation: SpeculationBody | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @model_validator(mode="after")
    def _prompts_are_not_streamed(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs needs stream to be false")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and self.stream_options.continuous_usage_stats

    @property
    def speculation_options(self) -> SpeculationOptions:
        return NO_OPTIONS if self.speculation is None else self.speculation.options()

    @property
    def num_prompt_top(self) -> int | None:
        """Alternatives to each token of the prompt to compute, None for no log-probabilities of it."""
        return self.prompt_logprobs

    def origin(self, client: Origin) -> Origin:
        """client: who sends the body."""
        salt = f"{client.cache_salt} {self.cache_salt}" if self.cache_salt else client.cache_salt
        return replace(client, priority=self.priority, cache_salt=salt)

    def sampling_params(
        self, max_tokens: int, logprobs: int | None, bad_words: tuple[tuple[int, ...], ...] = ()
    ) -> SamplingParams:
        """bad_words: as token ids. Raises APIError naming the option that is out of its range."""
        options = {name: getattr(self, name) for name in SAMPLING_OPTIONS}
        try:
            params = SamplingParams(
                max_tokens=max_tokens,
                logprobs=logprobs,
                prompt_logprobs=self.num_prompt_top,
                stop=tuple(self.stop),
                stop_token_ids=tuple(self.stop_token_ids),
                logit_bias=tuple(self.logit_bias.items()),
                allowed_token_ids=tuple(dict.fromkeys(self.allowed_token_ids)),
                bad_words_token_ids=bad_words,
                **options,
            )
            params.token_rules  # noqa: B018  (made here, in no step)
            return params
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


Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[int], Field(min_length=1)]
Prompts = Text | Annotated[list[Text], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]


class CompletionBody(GenerationBody):
    """POST /v1/completions. prompt: one or several prompts, each a text or a list of token ids."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_to_prompts, json_schema_input_type=Prompts)]
    logprobs: int | None = None
    echo: bool = False
    tools: Annotated[object, only([])] = None
    tool_choice: Annotated[object, only("none", "auto")] = None

    @property
    def num_prompt_top(self) -> int | None:
        if self.echo and self.logprobs is not None:
            return max(self.logprobs, self.prompt_logprobs or 0)
        # An echo without output computes something of the prompt, or nothing would be left to do.
        return 0 if self.echo and self.max_tokens == 0 and self.prompt_logprobs is None else self.prompt_logprobs

    @model_validator(mode="after")
    def _echoed_logprobs_are_not_streamed(self) -> Self:
        if self.stream and self.echo and self.logprobs is not None:
            raise ValueError("logprobs with echo needs stream to be false")
        return self


class Message(Body):
    """content may be left out by an assistant that called tools, only thought, or refused (that is then said)."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(join_text_parts, json_schema_input_type=str | list[TextPart])]
    name: str | None = None
    tool_calls: list[CalledTool] = Field([], max_length=MAX_CALLS)
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # what the assistant thought before it said this
    reasoning: str | None = None  # the same: vLLM's newer name
    refusal: str | None = None
    annotations: Annotated[object, only([])] = None
    provider_specific_fields: JsonObject | None = None  # LiteLLM's own notes, ignored

    @model_validator(mode="before")
    @classmethod
    def _content_may_be_elsewhere(cls, data: object) -> object:
        elsewhere = ("tool_calls", "reasoning_content", "reasoning", "refusal")
        if isinstance(data, dict) and data.get("content") is None and any(map(data.get, elsewhere)):
            return data | {"content": data.get("refusal") or ""}
        return data

    @model_validator(mode="after")
    def _only_the_assistant_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant has tool_calls")
        return self


# What OpenAI's client knows.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatBody(HarmlessChatFields, ToolFields, GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject = Field({}, max_length=MAX_FIELDS)
    reasoning_effort: ReasoningEffort | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def grammars(self) -> dict[str, ResponseFormat | StructuredOutputs | CallGrammar]:
        """A call that is demanded, or either a call or an answer of the format."""
        asked = super().grammars()
        if self.demanded_tools:
            asked["tool_choice"] = CallGrammar(self.demanded_tools)
        elif self.offered_tools and "response_format" in asked:
            asked["response_format"] = CallGrammar(self.offered_tools, self.response_format.schema)
        return asked

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @model_validator(mode="after")
    def _final_message_can_be_continued(self) -> Self:
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs the last message to be the assistant's")
        return self


class TokenizeBody(ToolFields):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [given("prompt", "string"), given("messages", "array")]})

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field([], max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject = Field({}, max_length=MAX_FIELDS)
    reasoning_effort: ReasoningEffort | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt or messages must be given, and not both")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]


AnyBody = TypeVar("AnyBody", bound=Body)


def parse_body(kind: type[AnyBody], body: bytes, ignore_unknown: bool = False) -> AnyBody:
    """Raises APIError 400 for anything that is not a valid body of this kind, naming the parameter at fault."""
    check_num_parts(body)
    try:
        return kind.model_validate_json(body, extra="ignore" if ignore_unknown else None)
    except ValidationError as error:
        raise refusal(kind, error) from error


def refusal(kind: type[BaseModel], error: ValidationError) -> APIError:
    """400, naming the first parameter at fault of a body of this kind."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "json_invalid":
            return APIError(400, f"the body is not valid JSON in UTF-8 ({message})", code="invalid_json")
        case "extra_forbidden":
            return APIError(400, f"unknown or unsupported parameter {param!r}", param, "unknown_parameter")
        case "missing":
            return APIError(400, f"{param} is required", param, "missing_parameter")
        case "value_error" if param is None:
            name = message.split()[0]
            return APIError(400, message, name if name in kind.model_fields else None, "invalid_value")
        case _:
            got = _cut(reprlib.repr(first["input"]))
            return APIError(400, f"{param or 'the body'}: {message}, got {got}", param, "invalid_value")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _path(location: tuple[str | int, ...]) -> str | None:
    """("messages", 0, "role") -> "messages[0].role"."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_cut(part)}" for part in location)
    return path.removeprefix(".") or None
