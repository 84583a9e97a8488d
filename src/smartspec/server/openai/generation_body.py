"""Fields common to all bodies that request text."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    Strict,
    ValidationInfo,
    model_validator,
)

from smartspec.core.origin import Origin
from smartspec.core.sampling_params import MAX_LOGPROBS, MIN_REPETITION_PENALTY, SamplingParams
from smartspec.core.speculation import (
    MAX_CLASS_NAME,
    MAX_TPOT_SECONDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    SpeculationOptions,
)
from smartspec.server.http.body_model import Body, is_strict, ranged
from smartspec.server.http.errors import APIError
from smartspec.server.openai.harmless import HarmlessFields
from smartspec.server.structured.fields import StructuredFields

MAX_CHOICES = 128
MAX_STOP_TOKEN_IDS = 1024
MAX_RULED_TOKENS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256  # of one
MAX_REQUEST_ID = 128  # characters
MAX_CACHE_SALT = 256  # characters
MIN_TPOT_MS = 0.001  # a microsecond
SAMPLING_OPTIONS = {field.name for field in fields(SamplingParams)}


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # never done


class SpeculationBody(Body):
    """Our own extension, see core.speculation. Ranges are checked here as well, so that the
    parameter is named."""

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
            tpot_target_seconds=_seconds(self.tpot_target_ms),
            ttft_target_seconds=_seconds(self.ttft_target_ms),
        )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _to_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


# -1 means random, as in vLLM and llama.cpp.
Seed = Annotated[
    Annotated[int, Field(ge=-(2**63), lt=2**63)] | None,
    AfterValidator(lambda seed: None if seed == -1 else seed),
]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]


class CommonFields(Body):
    """Fields of the bodies of all interfaces. SamplingParams checks the ranges of options."""

    model: str | None = None
    temperature: float = ranged(1.0, 0.0, 100.0)
    top_p: float = ranged(1.0, 0.0, 1.0)
    seed: Seed = None
    stream: bool = False
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT)
    speculation: SpeculationBody = SpeculationBody()


class GenerationBody(CommonFields, HarmlessFields, StructuredFields):
    """Fields of chats and completions."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = None
    top_k: int = Field(0, lt=2**31)
    min_p: float = ranged(0.0, 0.0, 1.0)
    repetition_penalty: float = ranged(1.0, MIN_REPETITION_PENALTY, 100.0)
    presence_penalty: float = ranged(0.0, -2.0, 2.0)
    frequency_penalty: float = ranged(0.0, -2.0, 2.0)
    stop: Annotated[
        list[str], FailFast(), BeforeValidator(_to_list, json_schema_input_type=str | list[str])
    ] = Field([])
    stop_token_ids: Annotated[list[int], FailFast()] = Field([], max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    logit_bias: dict[Annotated[int, Strict(False)], float] = Field({}, max_length=MAX_RULED_TOKENS)
    allowed_token_ids: Annotated[list[int], FailFast()] = Field([], min_length=1)
    bad_words: Annotated[list[BadWord], FailFast()] = Field([], max_length=MAX_BAD_WORDS)
    min_tokens: int = Field(0, ge=0)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    request_id: str | None = Field(
        None, min_length=1, max_length=MAX_REQUEST_ID, pattern=r"^[\w.:-]+$"
    )
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="after")
    def _goes_with_stream(self, info: ValidationInfo) -> Self:
        if is_strict(info) and "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs needs stream to be false")
        return self

    @property
    def num_prompt_top(self) -> int | None:
        """Alternatives to each token of the prompt to compute, None for no log-probabilities of
        it."""
        return self.prompt_logprobs

    def origin(self, client: Origin) -> Origin:
        """client: who sends the body."""
        salt = f"{client.cache_salt} {self.cache_salt}" if self.cache_salt else client.cache_salt
        return replace(client, priority=self.priority, cache_salt=salt)

    def sampling_params(
        self,
        max_tokens: int,
        logprobs: int | None,
        bad_words: tuple[tuple[int, ...], ...],
        defaults: Mapping[str, float],
    ) -> SamplingParams:
        """bad_words: as token ids. defaults: options where the body leaves them out. Raises
        APIError naming the option that is out of its range."""
        said = self.model_dump(include=SAMPLING_OPTIONS, exclude_unset=True) | {
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": self.num_prompt_top,
            "stop": tuple(self.stop),
            "stop_token_ids": tuple(self.stop_token_ids),
            "logit_bias": tuple(self.logit_bias.items()),
            "allowed_token_ids": tuple(dict.fromkeys(self.allowed_token_ids)),
            "bad_words_token_ids": bad_words,
        }
        try:
            params = SamplingParams(**{**defaults, **said})
            params.token_rules  # noqa: B018  (made here, in no step)
            return params
        except ValueError as error:
            raise APIError(
                400, str(error), param=str(error).split()[0], code="invalid_value"
            ) from error
