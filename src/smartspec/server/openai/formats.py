"""TextDeltas as the JSON of the two OpenAI endpoints. A whole answer is one large delta per
choice."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.text.stream import TextDelta
from smartspec.engine.text.token_texts import TokenText
from smartspec.server.openai.said import PLAIN_TEXT, AnswerReader, Reading, Said

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt whose log-probabilities are known."""

    token_ids: list[int]
    found: tuple[TokenLogprobs, ...]  # of its second token and those after it
    written: list[dict | None] | None  # as vLLM's `prompt_logprobs`, None if that was not requested


class Format(Protocol):
    """The form of one endpoint's answers; an object serves one call."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def whole_choice(self, delta: TextDelta) -> dict:
        """The choice of an answer that is not streamed."""

    def chunk_choice(self, delta: TextDelta) -> dict:
        """The choice of a streamed chunk; called in order."""

    def place_prompts(self, choices: list[dict], prompts: Sequence[ScoredPrompt]) -> dict:
        """Place the log-probabilities of each choice's prompt: into the choices, or what is
        returned into the answer."""


class CompletionFormat:
    """POST /v1/completions. show_top: whether alternatives were requested. echoed: what goes before
    the text of each choice, none of them if empty. read_echo: the tokens of an echoed text (text,
    token ids, log-probabilities), where theirs go before those of the output."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        show_top: bool,
        echoed: Sequence[str] = (),
        read_echo: Callable[[str, list[int], tuple[TokenLogprobs, ...]], Sequence[TokenText]]
        | None = None,
    ):
        self._show_top = show_top
        self._echoed = echoed
        self._read_echo = read_echo
        self._begun: set[int] = set()

    def whole_choice(self, delta: TextDelta) -> dict:
        return self.chunk_choice(delta)

    def chunk_choice(self, delta: TextDelta) -> dict:
        echoed = self._echoed[delta.index] if self._echoed else ""
        text = delta.text if delta.index in self._begun else echoed + delta.text
        self._begun.add(delta.index)
        # With an echo they are as many as usage counts, the token that ended the answer among them:
        # lm-eval takes the last one off, whatever it is.
        kept = [token for token in delta.logprobs or () if token.shown or self._read_echo]
        logprobs = None if delta.logprobs is None else self._logprobs(kept, len(echoed))
        return {
            "index": delta.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }

    def place_prompts(self, choices: list[dict], prompts: Sequence[ScoredPrompt]) -> dict:
        for choice, prompt in zip(choices, prompts, strict=True):
            if prompt.written is not None:
                choice["prompt_logprobs"] = prompt.written
            if self._read_echo is not None:
                tokens = self._read_echo(
                    self._echoed[choice["index"]], prompt.token_ids, prompt.found
                )
                before, after = self._logprobs(tokens, 0), choice["logprobs"]
                choice["logprobs"] = {
                    name: values and values + after[name] for name, values in before.items()
                }
        return {}

    def _logprobs(self, tokens: Sequence[TokenText], start: int) -> dict:
        """start: of the tokens' text in the choice's, in characters."""
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": list(map(_tops, tokens)) if self._show_top else None,
            "text_offset": [start + token.offset for token in tokens],
        }


def _tops(token: TokenText) -> dict[str, float | None] | None:
    """The token itself is always among them. Of several tokens with the same text the likeliest is
    kept."""
    if token.logprob is None:
        return None
    ranked = sorted((token, *token.top), key=lambda t: t.logprob)
    return {alternative.text: finite(alternative.logprob) for alternative in ranked}


class ChatFormat:
    """POST /v1/chat/completions. reading: what the text is read for."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, reading: Reading = PLAIN_TEXT):
        self._begun: set[int] = set()
        self._readers: defaultdict[int, AnswerReader] = defaultdict(partial(AnswerReader, reading))

    def whole_choice(self, delta: TextDelta) -> dict:
        delta, said = self._read(delta)
        message = {"role": "assistant", "content": said.text, "refusal": None} | _thought(said)
        if said.calls:
            message |= {
                "content": said.text or None,
                "tool_calls": [call.to_json() for call in said.calls],
            }
        return self._choice(delta, "message", message)

    def chunk_choice(self, delta: TextDelta) -> dict:
        role = {} if delta.index in self._begun else {"role": "assistant"}
        self._begun.add(delta.index)
        delta, said = self._read(delta)
        content = role | {"content": said.text} | _thought(said)
        if said.calls:
            first = self._readers[delta.index].num_calls - len(said.calls)
            content["tool_calls"] = [
                {"index": first + i} | call.to_json() for i, call in enumerate(said.calls)
            ]
        return self._choice(delta, "delta", content)

    def place_prompts(self, choices: list[dict], prompts: Sequence[ScoredPrompt]) -> dict:
        return {"prompt_logprobs": prompts[0].written}

    def _read(self, delta: TextDelta) -> tuple[TextDelta, Said]:
        """The delta, which may end with a call, and what it says."""
        reader = self._readers[delta.index]
        said = reader.push(delta.text, delta.finish_reason)
        called = delta.finish_reason == "stop" and reader.num_calls
        return replace(delta, finish_reason="tool_calls") if called else delta, said

    def _choice(self, delta: TextDelta, key: str, content: dict) -> dict:
        logprobs = None
        if delta.logprobs is not None:
            tokens = [
                _chat_token(token) | {"top_logprobs": list(map(_chat_token, token.top))}
                for token in delta.logprobs
                if token.shown
            ]
            logprobs = {"content": tokens, "refusal": None}
        return {
            "index": delta.index,
            key: content,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }


def _thought(said: Said) -> dict:
    return {"reasoning_content": said.thought} if said.thought else {}


def _chat_token(token: TokenText) -> dict:
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": list(token.bytes)}


def finite(logprob: float | None) -> float | None:
    """The value with -inf replaced, which JSON cannot hold."""
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)


def merge(deltas: list[TextDelta]) -> TextDelta:
    """All deltas of one choice as one; the last knows the totals and the finish reason."""
    logprobs = None
    if deltas[-1].logprobs is not None:
        logprobs = tuple(token for delta in deltas for token in delta.logprobs)
    return replace(
        deltas[-1],
        prompt_logprobs=deltas[0].prompt_logprobs,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=logprobs,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
    )


def usage(last_deltas: dict[int, TextDelta], n: int) -> dict:
    """Token counts of a call from the last delta of each choice; a prompt counts once however many
    choices it has."""
    prompts = [delta for index, delta in last_deltas.items() if index % n == 0]
    num_prompt_tokens = sum(delta.num_prompt_tokens for delta in prompts)
    num_output_tokens = sum(delta.num_output_tokens for delta in last_deltas.values())
    counts = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(delta.num_cached_tokens for delta in prompts)
        },
    }
    of_predictions = [
        delta.prediction_tokens
        for delta in last_deltas.values()
        if delta.prediction_tokens is not None
    ]
    if of_predictions:
        accepted, rejected = map(sum, zip(*of_predictions, strict=True))
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        counts["completion_tokens_details"] = details
    return counts
