"""The way from the tokens of a step to the text a caller sees."""

import asyncio
from dataclasses import dataclass
from itertools import zip_longest

from smartspec.core.batch import RequestOutput, TokenLogprobs
from smartspec.core.request import Request
from smartspec.engine.text.detokenizer import IncrementalDetokenizer, StopStrings
from smartspec.engine.text.token_texts import LogprobTexts, TokenText, TokenTexts


@dataclass(frozen=True)
class TextDelta:
    """The addition of one step to one choice of a call. The num_ counters are totals of the
    choice."""

    index: int  # prompt number * n + choice number
    text: str
    # new output tokens; a final stop token is one of them, but has no text
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenText, ...] | None  # of tokens whose place in the text is certain
    finish_reason: str | None  # None, "stop" or "length"
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    # the text again, by the token that brought it, and whether that was an accepted draft token; at
    # the end perhaps what was held back for a stop string
    pieces: tuple[tuple[str, bool], ...] = ()
    # in the first delta, of the prompt's second token and those after it, where they are wanted
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    first_step: float | None = None  # when its first step began, on the engine's clock in seconds
    request_number: int = 0  # of the choice's request, as in the decision log
    # totals of the choice, accepted and rejected draft tokens of its predicted output; None where
    # it has none
    prediction_tokens: tuple[int, int] | None = None
    stop_string: str | None = None


class Choice:
    """One request of a call on its way to text. events: where its TextDeltas go."""

    def __init__(
        self,
        index: int,
        request: Request,
        detokenizer: IncrementalDetokenizer,
        token_texts: TokenTexts,
        events: asyncio.Queue,
    ):
        self.index = index
        self.request = request
        self.events = events
        self._detokenizer = detokenizer
        self._stop_strings = StopStrings(
            request.params.stop, request.params.include_stop_str_in_output
        )
        self._num_output_tokens = 0
        self._num_characters = 0  # shown
        self._logprobs = LogprobTexts(token_texts)
        self._scores_prompt = request.params.prompt_logprobs is not None

    def advance(self, output: RequestOutput) -> TextDelta:
        """The text of a step's tokens, up to a stop string: tokens after it are dropped."""
        is_first = self._num_output_tokens == 0
        num_tokens = len(output.new_token_ids)
        is_hidden = (
            output.finish_reason == "stop" and not self.request.params.include_stop_str_in_output
        )
        pieces, texts, stopped = self._read(output.new_token_ids[: num_tokens - is_hidden])
        if stopped:
            num_tokens = len(texts)
        elif output.finish_reason is not None and (held := self._stop_strings.flush()):
            texts.append(held)
        self._num_output_tokens += num_tokens
        self._num_characters += sum(map(len, texts))
        token_ids = output.new_token_ids[:num_tokens]
        finish_reason = "stop" if stopped else output.finish_reason
        return TextDelta(
            index=self.index,
            text="".join(texts),
            token_ids=token_ids,
            logprobs=self._read_logprobs(
                token_ids, pieces, output.logprobs, finish_reason is not None
            ),
            finish_reason=finish_reason,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            pieces=tuple((text, number < output.num_accepted) for number, text in enumerate(texts)),
            prompt_logprobs=tuple(self.request.prompt_logprobs)
            if is_first and self._scores_prompt
            else None,
            first_step=self.request.first_step,
            request_number=self.request.request_id,
            prediction_tokens=self._prediction_tokens(),
            stop_string=self._stop_strings.found,
        )

    def _prediction_tokens(self) -> tuple[int, int] | None:
        """The accepted and rejected tokens; of the accepted, those that came before the end of the
        text."""
        request = self.request
        if not request.speculation.predicted_token_ids:
            return None
        return min(
            request.accepted_prediction_tokens, self._num_output_tokens
        ), request.rejected_prediction_tokens

    def _read(self, token_ids: tuple[int, ...]) -> tuple[list[str], list[str], bool]:
        """Read each token up to a stop string: the text it brought, the text that may be shown with
        it. And whether there was a stop string."""
        pieces: list[str] = []
        texts: list[str] = []
        for num_texts, token_id in enumerate(token_ids, start=1):
            piece = self._detokenizer.push(token_id)
            pieces.append(piece)
            if self._num_output_tokens + num_texts < self.request.params.min_tokens:
                texts.append(piece)  # too early for stop strings
                continue
            shown, stopped = self._stop_strings.push(piece)
            texts.append(shown)
            if stopped:
                return pieces, texts, True
        return pieces, texts, False

    def _read_logprobs(
        self,
        token_ids: tuple[int, ...],
        pieces: list[str],
        entries: tuple[TokenLogprobs, ...] | None,
        is_last: bool,
    ) -> tuple[TokenText, ...] | None:
        if entries is None:
            return None
        for token_id, piece, entry in zip_longest(token_ids, pieces, entries[: len(token_ids)]):
            self._logprobs.push(token_id, piece or "", entry, shown=piece is not None)
        return self._logprobs.take(self._num_characters, is_last)
