"""TextDeltas as choices of chats and of completions. A whole answer is one large delta per
choice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from smartspec.engine.text.stream import TextDelta
from smartspec.engine.text.token_texts import TokenText
from smartspec.server.openai.choices import Choices
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.prompt_logprobs import finite, with_top
from smartspec.server.openai.prompts import PromptReader
from smartspec.server.openai.said import AnswerReader, Said
from smartspec.server.openai.streaming import Call


class CompletionFormat(Choices):
    """POST /v1/completions."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, call: Call, body: CompletionBody, prompts: PromptReader):
        super().__init__(call, prompts.decode)
        self._num_top = body.logprobs or 0
        self._echoed = prompts.echoed(body, call.prompts)
        # Then the tokens of an echo go before those of the output.
        self._read_echo = prompts.read_echo if body.echo and body.logprobs is not None else None

    def chunk_choice(self, delta: TextDelta, is_first: bool) -> dict:
        echoed = self._echoed[delta.index // self._n] if self._echoed else ""
        # With an echo they are as many as usage counts, the token that ended the answer among them:
        # lm-eval takes the last one off, whatever it is.
        kept = [token for token in delta.logprobs or () if token.shown or self._read_echo]
        return {
            "index": delta.index,
            "text": echoed + delta.text if is_first else delta.text,
            "logprobs": None if delta.logprobs is None else self._logprobs(kept, len(echoed)),
            "finish_reason": delta.finish_reason,
        }

    def place_prompts(self, answer: dict, choices: Mapping[int, TextDelta]) -> None:
        for choice in answer["choices"]:
            number = choice["index"] // self._n
            found = choices[number * self._n].prompt_logprobs or ()
            choice |= self._prompt_logprobs(number, found)
            if self._read_echo is not None:
                tokens = self._read_echo(
                    self._echoed[number],
                    self._call.prompts[number],
                    with_top(found, self._num_top),
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
            "top_logprobs": list(map(_tops, tokens)) if self._num_top else None,
            "text_offset": [start + token.offset for token in tokens],
        }


def _tops(token: TokenText) -> dict[str, float | None] | None:
    """The token itself is always among them. Of several tokens with the same text the likeliest is
    kept."""
    if token.logprob is None:
        return None
    ranked = sorted((token, *token.top), key=lambda t: t.logprob)
    return {alternative.text: finite(alternative.logprob) for alternative in ranked}


class ChatFormat(Choices):
    """POST /v1/chat/completions."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, call: Call, prompts: PromptReader):
        super().__init__(call, prompts.decode)
        self._readers: defaultdict[int, AnswerReader] = defaultdict(
            partial(AnswerReader, call.reading)
        )

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

    def place_prompts(self, answer: dict, choices: Mapping[int, TextDelta]) -> None:
        answer |= self._prompt_logprobs(0, choices[0].prompt_logprobs or ())

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
