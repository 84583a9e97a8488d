"""From the tokens of a step to the text a caller sees."""

import asyncio
from dataclasses import dataclass

from smartspec.core.batch import RequestOutput, TokenLogprobs
from smartspec.core.request import Request
from smartspec.engine.text.detokenizer import IncrementalDetokenizer, StopStrings


@dataclass(frozen=True)
class TokenText:
    """A token and its log-probability; top: the most likely alternatives. Incomplete characters read U+FFFD."""

    text: str
    logprob: float
    top: tuple["TokenText", ...] = ()


@dataclass(frozen=True)
class TextDelta:
    """What one step added to one choice of a call.

    index: prompt number * n + choice number. token_ids: new output tokens; a final stop token is one of them, but has
    neither text nor logprobs. finish_reason: None, "stop" or "length". The num_ counters are totals of the choice.
    pieces: the text again, by the token that brought it, and whether that was an accepted draft token; at the end
    perhaps what was held back for a stop string. prompt_logprobs: in the first delta, of the prompt's second token and
    those behind it, where they were asked for. first_step: when its first step began, on the engine's clock in seconds.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenText, ...] | None
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    pieces: tuple[tuple[str, bool], ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    first_step: float | None = None


class Choice:
    """One request of a call on its way to text. events: where its TextDeltas go."""

    def __init__(self, index: int, request: Request, detokenizer: IncrementalDetokenizer, events: asyncio.Queue):
        self.index = index
        self.request = request
        self.events = events
        self._detokenizer = detokenizer
        self._stop_strings = StopStrings(request.params.stop, request.params.include_stop_str_in_output)
        self._num_output_tokens = 0
        self._scores_prompt = request.params.prompt_logprobs is not None

    def advance(self, output: RequestOutput, tokenizer) -> TextDelta:
        """The text of a step's tokens, up to a stop string: tokens behind it are dropped."""
        is_first = self._num_output_tokens == 0
        num_tokens = len(output.new_token_ids)
        is_hidden = output.finish_reason == "stop" and not self.request.params.include_stop_str_in_output
        texts, stopped = self._read(output.new_token_ids[: num_tokens - is_hidden])
        num_texts = len(texts)
        if stopped:
            num_tokens = num_texts
        elif output.finish_reason is not None and (held := self._stop_strings.flush()):
            texts.append(held)
        self._num_output_tokens += num_tokens
        token_ids = output.new_token_ids[:num_tokens]
        return TextDelta(
            index=self.index,
            text="".join(texts),
            token_ids=token_ids,
            logprobs=_token_texts(token_ids[:num_texts], output.logprobs, tokenizer),
            finish_reason="stop" if stopped else output.finish_reason,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            pieces=tuple((text, number < output.num_accepted) for number, text in enumerate(texts)),
            prompt_logprobs=tuple(self.request.prompt_logprobs) if is_first and self._scores_prompt else None,
            first_step=self.request.first_step,
        )

    def _read(self, token_ids: tuple[int, ...]) -> tuple[list[str], bool]:
        """Text of each token up to a stop string, and whether there was one."""
        texts: list[str] = []
        for num_texts, token_id in enumerate(token_ids, start=1):
            piece = self._detokenizer.push(token_id)
            if self._num_output_tokens + num_texts < self.request.params.min_tokens:
                texts.append(piece)  # too early for stop strings
                continue
            shown, stopped = self._stop_strings.push(piece)
            texts.append(shown)
            if stopped:
                return texts, True
        return texts, False


def _token_texts(
    token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] | None, tokenizer
) -> tuple[TokenText, ...] | None:
    if logprobs is None:
        return None
    texts = []
    for token_id, entry in zip(token_ids, logprobs, strict=False):
        top = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        alternatives = tuple(TokenText(tokenizer.decode([alternative]), logprob) for alternative, logprob in top)
        texts.append(TokenText(tokenizer.decode([token_id]), entry.logprob, alternatives))
    return tuple(texts)
