"""Sampling options of a request: how its tokens are chosen, and when it stops."""

from dataclasses import dataclass
from functools import cached_property

from smartspec.core.token_rules import TokenRules, token_rules

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024  # of one stop string
MAX_LOGPROBS = 20
MAX_BIAS = 100.0
MAX_TOP_K = 2**31 - 1
# Logits are multiplied or divided by the penalty in float32: much smaller ones would make
# infinities of them.
MIN_REPETITION_PENALTY = 0.01


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request. Raises ValueError naming the option, the value and the
    allowed range.

    temperature 0 means greedy. top_k 0 or -1 means no limit. seed None or -1 means that one is
    drawn when the request arrives. logit_bias: (token id, what is added to its logit) pairs.
    allowed_token_ids: no other tokens, empty for all. bad_words_token_ids: sequences that the
    output does not contain. min_tokens: it does not stop before. include_stop_str_in_output,
    skip_special_tokens: what of the text is shown. logprobs: number of most likely alternatives to
    report per token (0: the chosen token alone, None: none). prompt_logprobs: the same of the
    prompt; with them max_tokens may be 0.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self):
        if self.seed == -1:  # as in vLLM and llama.cpp
            object.__setattr__(self, "seed", None)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_excluded=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
        if self.max_tokens < (self.prompt_logprobs is None):
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got "
                f"{self.min_tokens}"
            )
        if not -1 <= self.top_k <= MAX_TOP_K:
            raise ValueError(
                f"top_k must be -1 or 0 (no limit) or positive, at most {MAX_TOP_K}, got "
                f"{self.top_k}"
            )
        for name in ("logprobs", "prompt_logprobs"):
            if (num_top := getattr(self, name)) is not None and not 0 <= num_top <= MAX_LOGPROBS:
                raise ValueError(f"{name} must be between 0 and {MAX_LOGPROBS}, got {num_top}")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(
                f"stop may hold at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}"
            )
        if "" in self.stop:
            raise ValueError("stop must not contain an empty string")
        if (longest := max(map(len, self.stop), default=0)) > MAX_STOP_CHARACTERS:
            raise ValueError(
                f"stop may hold strings of at most {MAX_STOP_CHARACTERS} characters, got {longest}"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @cached_property
    def token_rules(self) -> TokenRules:
        """Made once; what SamplingParams(...) and dataclasses.replace return makes its own."""
        return token_rules(self.allowed_token_ids, self.logit_bias, self.bad_words_token_ids)

    @property
    def has_logit_rules(self) -> bool:
        return bool(
            self.logit_bias or self.allowed_token_ids or self.bad_words_token_ids or self.min_tokens
        )


def _check_range(
    name: str, value: float, low: float, high: float, low_excluded: bool = False
) -> None:
    inside = low < value <= high if low_excluded else low <= value <= high
    if not inside:  # as it is for a NaN
        bracket = "(" if low_excluded else "["
        raise ValueError(f"{name} must be in {bracket}{low:g}, {high:g}], got {value}")
