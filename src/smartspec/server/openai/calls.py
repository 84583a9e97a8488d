"""Makes a Call for the engine from the bytes of a body."""

import itertools
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from smartspec.core.origin import Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.http.errors import APIError
from smartspec.server.http.parsing import parse_body, refusal
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
from smartspec.server.structured.grammar_check import GrammarCheckFailed
from smartspec.server.structured.grammars import GrammarCompiler

DEFAULT_COMPLETION_TOKENS = 16
NOT_WITH_GRAMMAR = ("allowed_token_ids", "bad_words", "min_tokens", "ignore_eos")

Converted = TypeVar("Converted", bound=ConvertibleBody)


class CallReader:
    """Reads the bodies of both endpoints; what is wrong with one is an APIError.

    Call it in a thread, but for with_grammar: a large body takes long. ignore_unknown: unknown fields are ignored
    instead of refused. is_text_invalid: see invalid_text.
    """

    def __init__(
        self,
        prompts: PromptReader,
        engine: AsyncEngine,
        model_name: str,
        ignore_unknown: bool,
        classes: WorkloadClasses,
        compiler: GrammarCompiler,
        is_text_invalid: bool = False,
    ):
        self._prompts = prompts
        self._engine = engine
        self._model_name = model_name
        self._ignore_unknown = ignore_unknown
        self._classes = classes
        self._compiler = compiler
        self._is_text_invalid = is_text_invalid

    def completion(self, data: bytes, client: Origin) -> tuple[Call, CompletionFormat]:
        body = parse_body(CompletionBody, data, self._ignore_unknown)
        self._check(body, len(body.prompt))
        prompts = self._prompts.read_completion(body)
        max_tokens = self._prompts.max_tokens(body, body.max_tokens, DEFAULT_COMPLETION_TOKENS, prompts)
        params = body.sampling_params(max_tokens, body.logprobs, self._prompts.bad_words(body))
        if body.echo and body.logprobs is not None:
            check_num_entries("logprobs", prompts, body.n, body.logprobs)
        form = CompletionFormat(
            show_top=bool(body.logprobs),
            echoed=self._prompts.echoes(body, prompts),
            read_echo=self._prompts.echo_reader(body),
        )
        return self._call(body, prompts, params, client), form

    def chat(self, data: bytes, client: Origin) -> tuple[Call, ChatFormat]:
        body = parse_body(ChatBody, data, self._ignore_unknown)
        call = self._chat(body, client)
        return call, ChatFormat(call.reading)

    def converted(self, kind: type[Converted], data: bytes, client: Origin) -> tuple[Call, Converted]:
        """Of a body of that kind."""
        body = parse_body(kind, data, self._ignore_unknown)
        try:
            chat = body.to_chat()
        except ValidationError as error:
            raise refusal(ChatBody, error) from error
        return self._chat(chat, client), body

    async def with_grammar(self, call: Call) -> Call:
        """The call with its grammar compiled, if it has one. Cancelling it stops the work. Raises QueueFull."""
        if call.requested_grammar is None:
            return call
        try:
            grammar = await self._compiler.compiled(call.requested_grammar.definition, call.origin)
            return replace(call, grammar=grammar)
        except ValueError as error:
            raise _refused(call.requested_grammar.field, error) from error
        except GrammarCheckFailed as error:
            raise APIError(503, f"{error}: try again", call.requested_grammar.field, "grammar_not_compiled") from error

    def _chat(self, body: ChatBody, client: Origin) -> Call:
        self._check(body, 1)
        prompts = [self._prompts.read_chat(body)]
        requested = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        max_tokens = self._prompts.max_tokens(body, requested, None, prompts)
        num_top = (body.top_logprobs or 0) if body.logprobs else None
        params = body.sampling_params(max_tokens, num_top, self._prompts.bad_words(body))
        call = self._call(body, prompts, params, client)
        speculation = replace(call.speculation, predicted_token_ids=self._prompts.predicted(body))
        return replace(call, speculation=speculation, reading=self._reading(call, body))

    def _reading(self, call: Call, body: ChatBody) -> Reading:
        """A grammar holds the text from its first token on, so that there is no thought."""
        max_calls = body.max_calls if body.offered_tools else 0
        if call.requested_grammar is not None or not self._prompts.model_thinks:
            return Reading(max_calls=max_calls)
        return Reading(thinks=True, is_open=self._prompts.opens_thought(call.prompts[0]), max_calls=max_calls)

    def _check(self, body: GenerationBody, num_prompts: int) -> None:
        check_model(body.model, self._model_name)
        if self._is_text_invalid:
            check_promises_nothing(body)
        body.speculation = self._classes.fill(body.speculation)
        check_num_choices(num_prompts * body.n, self._engine.admission.max_requests_of_client)
        self._prompts.check_token_ids("stop_token_ids", body.stop_token_ids)
        self._prompts.check_token_ids("allowed_token_ids", body.allowed_token_ids)
        self._prompts.check_token_ids("logit_bias", body.logit_bias)

    def _call(self, body: GenerationBody, prompts: list[list[int]], params: SamplingParams, client: Origin) -> Call:
        if body.prompt_logprobs is not None:
            check_num_entries("prompt_logprobs", prompts, body.n, body.prompt_logprobs)
        return Call(
            model=self._model_name,
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
        )


def _requested_grammar(body: GenerationBody) -> RequestedGrammar | None:
    requested = body.grammars()
    if not requested:
        return None
    others = [name for name in NOT_WITH_GRAMMAR if getattr(body, name)]
    for one, other in itertools.pairwise((*requested, *others)):
        raise APIError(400, f"{one} cannot be combined with {other}: together they may leave no token", one)
    ((name, what),) = requested.items()
    try:
        return RequestedGrammar(name, what.definition())
    except ValueError as error:
        raise _refused(name, error) from error


def _refused(name: str, error: ValueError) -> APIError:
    return APIError(400, f"{name}: {error}", name, "invalid_value")


def check_model(requested: str | None, served: str) -> None:
    """Raises APIError 404 unless the request names the served model, or none."""
    if requested is not None and requested != served:
        raise APIError(
            404, f"there is no model {requested!r} here; this server runs {served!r}", "model", "model_not_found"
        )


def check_num_choices(requested: int, room: int) -> None:
    """Raises APIError 400 if one call requests more choices than the server can ever run at once."""
    if requested > room:
        raise APIError(400, f"{requested} choices in one call are more than the {room} there is room for")
