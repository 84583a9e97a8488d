"""TextDeltas as choices of chats and of completions. A whole answer is one large delta per
choice."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.text.stream import TextDelta
from smartspec.engine.text.token_texts import TokenText
from smartspec.server.openai.said import AnswerReader, Reading, Said

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt whose log-probabilities are known."""

    token_ids: list[int]
    found: tuple[TokenLogprobs, ...]  # of its second token and those after it
    written: list[dict | None] | None  # as vLLM's `prompt_logprobs`, None if that was not requested


@dataclass(frozen=True)
class CompletionFormat:
    """POST /v1/completions. show_top: whether alternatives were requested. echoed: what goes before
    the text of each choice, none of them if empty. read_echo: the tokens of an echoed text (text,
    token ids, log-probabilities), where theirs go before those of the output."""

    id_prefix: ClassVar = "cmpl"
    whole_object: ClassVar = "text_completion"
    chunk_object: ClassVar = "text_completion"

    show_top: bool
    echoed: Sequence[str]
    read_echo: Callable[[str, list[int], tuple[TokenLogprobs, ...]], Sequence[TokenText]] | None

    def whole_choice(self, delta: TextDelta) -> dict:
        """The choice of an answer that is not streamed."""
        return self.chunk_choice(delta, is_first=True)

    def chunk_choice(self, delta: TextDelta, is_first: bool) -> dict:
        """The choice of a streamed chunk; called in order. is_first: of this choice."""
        echoed = self.echoed[delta.index] if self.echoed else ""
        # With an echo they are as many as usage counts, the token that ended the answer among them:
        # lm-eval takes the last one off, whatever it is.
        kept = [token for token in delta.logprobs or () if token.shown or self.read_echo]
        return {
            "index": delta.index,
            "text": echoed + delta.text if is_first else delta.text,
            "logprobs": None if delta.logprobs is None else self._logprobs(kept, len(echoed)),
            "finish_reason": delta.finish_reason,
        }

    def place_prompts(self, answer: dict, prompts: Sequence[ScoredPrompt]) -> None:
        """Place the log-probabilities of each choice's prompt into the answer."""
        for choice, prompt in zip(answer["choices"], prompts, strict=True):
            if prompt.written is not None:
                choice["prompt_logprobs"] = prompt.written
            if self.read_echo is not None:
                tokens = self.read_echo(
                    self.echoed[choice["index"]], prompt.token_ids, prompt.found
                )
                before, after = self._logprobs(tokens, 0), choice["logprobs"]
                choice["logprobs"] = {
                    name: values and values + after[name] for name, values in before.items()
                }

    def _logprobs(self, tokens: Sequence[TokenText], start: int) -> dict:
        """start: of the tokens' text in the choice's, in characters."""
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": list(map(_tops, tokens)) if self.show_top else None,
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
    """POST /v1/chat/completions: as CompletionFormat, and an object serves one call. reading: what
    the text is read for."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, reading: Reading):
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

    def chunk_choice(self, delta: TextDelta, is_first: bool) -> dict:
        role = {"role": "assistant"} if is_first else {}
        delta, said = self._read(delta)
        content = role | {"content": said.text} | _thought(said)
        if said.calls:
            first = self._readers[delta.index].num_calls - len(said.calls)
            content["tool_calls"] = [
                {"index": first + i} | call.to_json() for i, call in enumerate(said.calls)
            ]
        return self._choice(delta, "delta", content)

    def place_prompts(self, answer: dict, prompts: Sequence[ScoredPrompt]) -> None:
        answer["prompt_logprobs"] = prompts[0].written

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
