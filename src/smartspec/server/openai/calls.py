"""Makes a Call for the engine from the bytes of a body."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import ValidationError

from smartspec.core.origin import Origin
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.http.errors import APIError
from smartspec.server.http.parsing import BodyParser, refusal
from smartspec.server.openai.chat_body import (
    ChatBody,
    ConvertibleBody,
    DetokenizeBody,
    TokenizeBody,
)
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.formats import ChatFormat, CompletionFormat
from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.invalid_text import check_promises_nothing
from smartspec.server.openai.prompt_logprobs import check_num_entries
from smartspec.server.openai.prompts import PromptReader
from smartspec.server.openai.streaming import Call, Format, RequestedGrammar
from smartspec.server.openai.workload_classes import WorkloadClasses
from smartspec.server.structured.fields import after_thought
from smartspec.server.structured.grammar_check import GrammarCheckFailed
from smartspec.server.structured.grammars import GrammarCompiler

DEFAULT_COMPLETION_TOKENS = 16
NO_LIMIT = -1  # of tokens, as llama.cpp has it
CLIPPED_HEADER = "X-Max-Tokens-Clipped"
NOT_WITH_GRAMMAR = ("allowed_token_ids", "bad_words", "min_tokens", "ignore_eos")

Converted = TypeVar("Converted", bound=ConvertibleBody)


@dataclass(frozen=True)
class CallReader:
    """Reads the bodies of all endpoints; what is wrong with one is an APIError.

    Call it in a thread, but for with_grammar: a large body takes long. is_text_invalid: see
    invalid_text.
    """

    prompts: PromptReader
    engine: AsyncEngine
    names: Sequence[str]
    parser: BodyParser
    classes: WorkloadClasses
    compiler: GrammarCompiler
    is_text_invalid: bool

    def completion(self, data: bytes, client: Origin) -> tuple[Call, Format]:
        body = self.parser.parse(CompletionBody, data, client)
        self._check(body, len(body.prompt))
        prompts = self.prompts.read_completion(body)
        call = self._call(body, prompts, client, DEFAULT_COMPLETION_TOKENS, body.logprobs)
        if body.echo and body.logprobs is not None:
            check_num_entries("logprobs", prompts, body.n, body.logprobs)
        return call, CompletionFormat(call, body, self.prompts)

    def chat(self, data: bytes, client: Origin) -> tuple[Call, Format]:
        call = self._chat(self.parser.parse(ChatBody, data, client), client)
        return call, ChatFormat(call, self.prompts)

    def converted(
        self,
        kind: type[Converted],
        make_format: Callable[[Call, Converted], Format],
        data: bytes,
        client: Origin,
    ) -> tuple[Call, Format]:
        """The call of a body of that kind, and the form of its answer."""
        body = self.parser.parse(kind, data, client)
        try:
            chat = body.to_chat()
        except ValidationError as error:
            raise refusal(ChatBody, error) from error
        call = self._chat(chat, client)
        return call, make_format(call, body)

    def tokenized(self, data: bytes, client: Origin) -> dict:
        """The answer of POST /tokenize."""
        body = self.parser.parse(TokenizeBody, data, client)
        check_model(body.model, self.names)
        token_ids = self.prompts.tokenize(body)
        size = self.engine.max_model_len
        return {"count": len(token_ids), "max_model_len": size, "tokens": token_ids}

    def detokenized(self, data: bytes, client: Origin) -> dict:
        """The answer of POST /detokenize."""
        body = self.parser.parse(DetokenizeBody, data, client)
        check_model(body.model, self.names)
        return {"prompt": self.prompts.detokenize(body.tokens)}

    async def with_grammar(self, call: Call) -> Call:
        """The call with its grammar compiled, if it has one. Cancelling it stops the work. Raises
        QueueFull."""
        requested = call.requested_grammar
        if requested is None:
            return call
        try:
            grammar = await self.compiler.compiled(requested.definition, call.origin)
            return replace(call, grammar=grammar)
        except ValueError as error:
            raise _refused(requested.field, error) from error
        except GrammarCheckFailed as error:
            message = f"{error}: try again"
            raise APIError(503, message, requested.field, "grammar_not_compiled") from error

    def _chat(self, body: ChatBody, client: Origin) -> Call:
        self._check(body, 1)
        call = self._call(
            body,
            [self.prompts.read_chat(body)],
            client,
            self.engine.sampling_defaults.get("max_tokens"),
            (body.top_logprobs or 0) if body.logprobs else None,
        )
        speculation = replace(call.speculation, predicted_token_ids=self.prompts.predicted(body))
        params, grammar = call.params, call.requested_grammar
        reading = self.prompts.reading(body, call.prompts[0], grammar is not None)
        if reading.max_calls and self.prompts.has_special_marks(reading.call_format):
            params = replace(params, skip_special_tokens=False)
        if grammar is not None and reading.thinks:
            grammar = replace(
                grammar, definition=after_thought(grammar.definition, reading.is_open)
            )
        return replace(
            call, params=params, speculation=speculation, reading=reading, requested_grammar=grammar
        )

    def _max_tokens(
        self, body: GenerationBody, prompts: list[list[int]], default: int | None
    ) -> int:
        """New tokens allowed: those that the client said, or the default, at most what the context
        leaves (None, -1: all of that)."""
        said = body.max_tokens
        requested = default if said is None else said
        room = self.prompts.room(body, requested, prompts)
        if said is not None and said > room and self.parser.strict:
            raise APIError(
                400,
                f"max_tokens {said} and the {max(map(len, prompts))} tokens of the prompt "
                f"exceed the context of {self.engine.max_model_len} tokens: use at most {room}",
                "max_tokens",
                "context_length_exceeded",
            )
        return room if requested in (None, NO_LIMIT) else min(requested, room)

    def _check(self, body: GenerationBody, num_prompts: int) -> None:
        check_model(body.model, self.names)
        if self.is_text_invalid:
            check_promises_nothing(body)
        body.speculation = self.classes.fill(body.speculation)
        requested, room = num_prompts * body.n, self.engine.config.max_requests_of_client
        if requested > room:
            raise APIError(
                400, f"{requested} choices in one call are more than the {room} there is room for"
            )
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self.prompts.check_token_ids(field, getattr(body, field))

    def _call(
        self,
        body: GenerationBody,
        prompts: list[list[int]],
        client: Origin,
        default: int | None,
        num_top: int | None,
    ) -> Call:
        """default: as for _max_tokens. num_top: alternatives to each token of the answer, None for
        no log-probabilities."""
        max_tokens = self._max_tokens(body, prompts, default)
        params = body.sampling_params(
            max_tokens, num_top, self.prompts.bad_words(body), self.engine.sampling_defaults
        )
        if body.prompt_logprobs is not None:
            check_num_entries("prompt_logprobs", prompts, body.n, body.prompt_logprobs)
        is_clipped = body.max_tokens is not None and body.max_tokens > max_tokens
        return Call(
            model=self.names[0],
            body=body,
            prompts=prompts,
            params=params,
            speculation=body.speculation.options(),
            origin=body.origin(client),
            headers={CLIPPED_HEADER: str(max_tokens)} if is_clipped else {},
            requested_grammar=_requested_grammar(body),
        )


def _requested_grammar(body: GenerationBody) -> RequestedGrammar | None:
    requested = body.grammars()
    if not requested:
        return None
    names = [*requested, *(name for name in NOT_WITH_GRAMMAR if getattr(body, name))]
    if len(names) > 1:
        raise APIError(
            400,
            f"{names[0]} cannot be combined with {names[1]}: together they may leave no token",
            names[0],
        )
    ((name, what),) = requested.items()
    try:
        return RequestedGrammar(name, what.definition())
    except ValueError as error:
        raise _refused(name, error) from error


def _refused(name: str, error: ValueError) -> APIError:
    return APIError(400, f"{name}: {error}", name, "invalid_value")


def check_model(requested: str | None, served: Sequence[str]) -> None:
    """Raises APIError 404 unless the request gives one of the names of the served model, or
    none."""
    if requested is not None and requested not in served:
        runs = ", ".join(map(repr, served))
        raise APIError(
            404,
            f"there is no model {requested!r} here; this server runs {runs}",
            "model",
            "model_not_found",
        )
