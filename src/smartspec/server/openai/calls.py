"""Makes a Call for the engine from the bytes of a body."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from smartspec.core.origin import Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.http.errors import APIError
from smartspec.server.http.parsing import BodyParser, refusal
from smartspec.server.openai.call_formats import HERMES
from smartspec.server.openai.chat_body import ChatBody, ConvertibleBody
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.formats import ChatFormat, CompletionFormat
from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.invalid_text import check_promises_nothing
from smartspec.server.openai.prompt_logprobs import check_num_entries
from smartspec.server.openai.prompts import PromptReader
from smartspec.server.openai.said import Reading
from smartspec.server.openai.streaming import Call, RequestedGrammar
from smartspec.server.openai.workload_classes import WorkloadClasses
from smartspec.server.structured.after_thought import after_thought
from smartspec.server.structured.grammar_check import GrammarCheckFailed
from smartspec.server.structured.grammars import GrammarCompiler

DEFAULT_COMPLETION_TOKENS = 16
NO_LIMIT = -1  # of tokens, as llama.cpp has it
CLIPPED_HEADER = "X-Max-Tokens-Clipped"
NOT_WITH_GRAMMAR = ("allowed_token_ids", "bad_words", "min_tokens", "ignore_eos")

Converted = TypeVar("Converted", bound=ConvertibleBody)


class CallReader:
    """Reads the bodies of all endpoints; what is wrong with one is an APIError.

    Call it in a thread, but for with_grammar: a large body takes long. is_text_invalid: see
    invalid_text.
    """

    def __init__(
        self,
        prompts: PromptReader,
        engine: AsyncEngine,
        names: Sequence[str],
        parser: BodyParser,
        classes: WorkloadClasses,
        compiler: GrammarCompiler,
        is_text_invalid: bool = False,
    ):
        self._prompts = prompts
        self._engine = engine
        self._names = names
        self._parser = parser
        self._classes = classes
        self._compiler = compiler
        self._is_text_invalid = is_text_invalid

    def completion(self, data: bytes, client: Origin) -> tuple[Call, CompletionFormat]:
        body = self._parser.parse(CompletionBody, data, client)
        self._check(body, len(body.prompt))
        prompts = self._prompts.read_completion(body)
        requested = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        max_tokens, is_clipped = self._max_tokens(
            body, requested, body.max_tokens is not None, prompts
        )
        params = self._params(body, max_tokens, body.logprobs)
        if body.echo and body.logprobs is not None:
            check_num_entries("logprobs", prompts, body.n, body.logprobs)
        form = CompletionFormat(
            show_top=bool(body.logprobs),
            echoed=self._prompts.echoes(body, prompts),
            read_echo=self._prompts.echo_reader(body),
        )
        return self._call(body, prompts, params, client, is_clipped), form

    def chat(self, data: bytes, client: Origin) -> tuple[Call, ChatFormat]:
        body = self._parser.parse(ChatBody, data, client)
        call = self._chat(body, client)
        return call, ChatFormat(call.reading)

    def converted(
        self, kind: type[Converted], data: bytes, client: Origin
    ) -> tuple[Call, Converted]:
        """The call of a body of that kind, and the body."""
        body = self._parser.parse(kind, data, client)
        try:
            chat = body.to_chat()
        except ValidationError as error:
            raise refusal(ChatBody, error) from error
        return self._chat(chat, client), body

    async def with_grammar(self, call: Call) -> Call:
        """The call with its grammar compiled, if it has one. Cancelling it stops the work. Raises
        QueueFull."""
        if call.requested_grammar is None:
            return call
        try:
            grammar = await self._compiler.compiled(call.requested_grammar.definition, call.origin)
            return replace(call, grammar=grammar)
        except ValueError as error:
            raise _refused(call.requested_grammar.field, error) from error
        except GrammarCheckFailed as error:
            raise APIError(
                503, f"{error}: try again", call.requested_grammar.field, "grammar_not_compiled"
            ) from error

    def _chat(self, body: ChatBody, client: Origin) -> Call:
        self._check(body, 1)
        prompts = [self._prompts.read_chat(body)]
        said = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        requested = self._engine.sampling_defaults.get("max_tokens") if said is None else said
        max_tokens, is_clipped = self._max_tokens(body, requested, said is not None, prompts)
        params = self._params(body, max_tokens, (body.top_logprobs or 0) if body.logprobs else None)
        call = self._call(body, prompts, params, client, is_clipped)
        speculation = replace(call.speculation, predicted_token_ids=self._prompts.predicted(body))
        reading = self._reading(call, body)
        if reading.max_calls and self._prompts.has_special_marks(reading.call_format):
            params = replace(params, skip_special_tokens=False)
        grammar = call.requested_grammar
        if grammar is not None and reading.thinks:
            grammar = replace(
                grammar, definition=after_thought(grammar.definition, reading.is_open)
            )
        return replace(
            call, params=params, speculation=speculation, reading=reading, requested_grammar=grammar
        )

    def _params(self, body: GenerationBody, max_tokens: int, num_top: int | None) -> SamplingParams:
        bad_words = self._prompts.bad_words(body)
        return body.sampling_params(max_tokens, num_top, bad_words, self._engine.sampling_defaults)

    def _max_tokens(
        self, body: GenerationBody, requested: int | None, is_said: bool, prompts: list[list[int]]
    ) -> tuple[int, bool]:
        """New tokens allowed: those requested, at most what the context leaves (None, -1: all of
        that). And whether fewer than the client said."""
        room = self._prompts.room(body, requested, prompts)
        if requested in (None, NO_LIMIT):
            return room, False
        if requested > room and is_said and self._parser.strict:
            raise APIError(
                400,
                f"max_tokens {requested} and the {max(map(len, prompts))} tokens of the prompt "
                f"exceed the context of {self._engine.max_model_len} tokens: use at most {room}",
                "max_tokens",
                "context_length_exceeded",
            )
        return min(requested, room), is_said and requested > room

    def _reading(self, call: Call, body: ChatBody) -> Reading:
        """A grammar has calls in a format of its own."""
        has_grammar, thinks = call.requested_grammar is not None, self._prompts.model_thinks
        return Reading(
            thinks=thinks,
            is_open=thinks and self._prompts.opens_thought(call.prompts[0], body),
            max_calls=body.max_calls if body.offered_tools else 0,
            call_format=self._prompts.call_format(body)
            if body.offered_tools and not has_grammar
            else HERMES,
            schemas={tool.function.name: tool.function.parameters for tool in body.offered_tools},
        )

    def _check(self, body: GenerationBody, num_prompts: int) -> None:
        check_model(body.model, self._names)
        if self._is_text_invalid:
            check_promises_nothing(body)
        body.speculation = self._classes.fill(body.speculation)
        check_num_choices(num_prompts * body.n, self._engine.admission.max_requests_of_client)
        self._prompts.check_token_ids("stop_token_ids", body.stop_token_ids)
        self._prompts.check_token_ids("allowed_token_ids", body.allowed_token_ids)
        self._prompts.check_token_ids("logit_bias", body.logit_bias)

    def _call(
        self,
        body: GenerationBody,
        prompts: list[list[int]],
        params: SamplingParams,
        client: Origin,
        is_clipped: bool,
    ) -> Call:
        if body.prompt_logprobs is not None:
            check_num_entries("prompt_logprobs", prompts, body.n, body.prompt_logprobs)
        return Call(
            model=self._names[0],
            prompts=prompts,
            params=params,
            n=body.n,
            stream=body.stream,
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            request_id=body.request_id,
            report=body.speculation is not None and body.speculation.report,
            speculation=body.speculation_options,
            origin=body.origin(client),
            requested_grammar=_requested_grammar(body),
            decode=self._prompts.decode,
            prompt_logprobs=body.prompt_logprobs,
            headers={CLIPPED_HEADER: str(params.max_tokens)} if is_clipped else {},
        )


def _requested_grammar(body: GenerationBody) -> RequestedGrammar | None:
    requested = body.grammars()
    if not requested:
        return None
    others = [name for name in NOT_WITH_GRAMMAR if getattr(body, name)]
    for one, other in itertools.pairwise((*requested, *others)):
        raise APIError(
            400, f"{one} cannot be combined with {other}: together they may leave no token", one
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


def check_num_choices(requested: int, room: int) -> None:
    """Raises APIError 400 if one call requests more choices than the server can ever run at
    once."""
    if requested > room:
        raise APIError(
            400, f"{requested} choices in one call are more than the {room} there is room for"
        )
