"""The engine in a thread of its own: asyncio callers submit prompts and receive text as steps
finish.

Only the engine thread touches the core. What others want done there (add, abort, read the
controller's state) is put into one queue of functions and run between two steps, so an abort takes
effect before the next step begins.
"""

import asyncio
import itertools
import logging
import queue
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from smartspec.core.batch import RequestOutput, StepOutput
from smartspec.core.grammar import Grammar
from smartspec.core.origin import UNKNOWN_ORIGIN, Origin
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions
from smartspec.engine.runtime.engine_thread import EngineThread
from smartspec.engine.runtime.huge_pages import collapse_pages
from smartspec.engine.sampling.randomness import fold_seed
from smartspec.engine.text.detokenizer import IncrementalDetokenizer
from smartspec.engine.text.stream import Choice, TextDelta
from smartspec.engine.text.token_texts import TokenTexts

if TYPE_CHECKING:
    from smartspec.engine.runtime.build import Engine

logger = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
FIRST_STEPS = 64  # enough to tell how wrong a profile is
SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so that all choices of a prompt have different seeds


class QueueFull(Exception):
    """No further request may wait."""


class EngineError(Exception):
    """The request was lost: a step failed, or the engine was stopped."""


class NoTokenLeft(EngineError):
    """The request's own rules leave no token that could come next."""


class EngineStopped(EngineError):
    """The engine was stopped, or is about to be."""


class AsyncEngine:
    """Runs an engine's core in an engine thread: the one it was built in, where it computes.

    idle_work is advanced in the engine thread while there is no request; each of its steps should
    take milliseconds. None: what the process holds is moved into huge pages. listeners are called
    in the event loop with every StepOutput.
    The engine's check_profile is called in the event loop after FIRST_STEPS steps, its
    measure_again in the engine thread when no request has come for IDLE_SECONDS, then for twice as
    long, and so on.
    """

    def __init__(
        self, engine: "Engine", thread: EngineThread, idle_work: Iterable[None] | None = None
    ):
        self.core, self.config = engine.core, engine.config
        self.vocab_size = engine.loaded.vocab_size
        self.max_model_len = engine.max_model_len
        self.sampling_defaults = engine.loaded.sampling_defaults
        self.listeners: list[Callable[[StepOutput], None]] = []
        self._tokenizer = engine.tokenizer
        self.token_texts = TokenTexts(engine.tokenizer.backend_tokenizer)
        self._eos_token_ids = engine.loaded.eos_token_ids
        self._request_ids = itertools.count()
        self.num_requests = 0
        self._num_requests_of: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.accepts_requests = True  # False: those under way are the last
        self._stopped = False  # owned by the event loop
        self._running = True  # owned by the engine thread
        self._choices: dict[int, Choice] = {}
        self._thread = thread
        self._idle_work = iter(collapse_pages() if idle_work is None else idle_work)
        self._clock = engine.core.executor.clock  # in seconds
        self._check_profile = engine.check_profile
        self._measure_again = engine.measure_again
        self._idle_seconds = IDLE_SECONDS
        self._num_steps = 0  # counted in the event loop
        # time before it belongs to a step, or the engine had nothing to do
        self._measured_until = 0.0
        self._ended: Future | None = None

    @property
    def alive(self) -> bool:
        """True while requests are being worked on."""
        return self._ended is not None and not self._ended.done()

    def start(self) -> None:
        """Begin to work. Call it in the event loop that will consume the output."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._thread.submit(self._run)

    async def stop(self) -> None:
        """End after the present step; requests under way and later ones get an EngineError.
        Idempotent."""
        self._stopped = True
        self._commands.put(self._leave)
        if self._ended is not None:
            await asyncio.wrap_future(self._ended)

    async def generate(
        self,
        prompts: list[list[int]],
        params: SamplingParams,
        n: int = 1,
        speculation: SpeculationOptions = NO_OPTIONS,
        origin: Origin = UNKNOWN_ORIGIN,
        grammar: Grammar | None = None,
    ) -> AsyncIterator[TextDelta]:
        """Text of n choices for each prompt (token ids) as it comes, until every choice has a
        finish_reason.

        Without a seed all choices are independent. With one, the choices of a prompt differ from
        each other, and are what they would be in a call of its own: equal prompts get equal choices
        (n gives several). grammar: what every choice is held to.
        Closing or cancelling the iterator aborts what is left before the next step. Raises
        QueueFull when there is no room for all choices, ValueError when one could never run,
        EngineError when the engine or a choice failed, EngineStopped when it takes no more
        requests.
        """
        self._check_alive()
        if not self.accepts_requests:
            raise EngineStopped("the server is stopping and takes no new requests")
        num_choices = len(prompts) * n
        self._check_room(origin.client, num_choices)
        events: asyncio.Queue[TextDelta | Exception] = asyncio.Queue()
        choices = self._make_choices(prompts, params, n, speculation, origin, grammar, events)
        unfinished = {choice.index: choice.request.request_id for choice in choices}
        self.num_requests += num_choices
        self._num_requests_of[origin.client] += num_choices
        try:
            self._commands.put(partial(self._add, choices))
            while unfinished:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if event.finish_reason is not None:
                    del unfinished[event.index]
                yield event
        finally:
            self.num_requests -= num_choices
            self._num_requests_of[origin.client] -= num_choices
            if not self._num_requests_of[origin.client]:
                del self._num_requests_of[origin.client]
            if unfinished:
                self._commands.put(partial(self._abort, list(unfinished.values())))

    async def call(self, function: Callable[[], object]) -> object:
        """The result of function, run in the engine thread between two steps. EngineError once it
        was stopped."""
        self._check_alive()
        future = self._loop.create_future()

        def finish(result: object, error: Exception | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def run() -> None:
            try:
                answer = (function(), None)
            except Exception as error:
                answer = (None, error)
            self._loop.call_soon_threadsafe(finish, *answer)

        self._commands.put(run)
        return await future

    def _check_alive(self) -> None:
        if self._stopped or not self.alive:
            raise EngineStopped(
                "the engine was stopped" if self._stopped else "the engine is not running"
            )

    def _check_room(self, client: str, num_choices: int) -> None:
        if self.num_requests + num_choices > self.config.max_requests:
            raise QueueFull(
                f"the engine holds {self.num_requests} of at most {self.config.max_requests} "
                "requests"
            )
        if self._num_requests_of[client] + num_choices > self.config.max_requests_of_client:
            num_requests = self._num_requests_of[client]
            raise QueueFull(
                f"{num_requests} of at most {self.config.max_requests_of_client} requests of "
                "this client are here"
            )

    def _make_choices(
        self,
        prompts: list[list[int]],
        params: SamplingParams,
        n: int,
        speculation: SpeculationOptions,
        origin: Origin,
        grammar: Grammar | None,
        events: asyncio.Queue,
    ) -> list[Choice]:
        eos_token_ids = frozenset() if params.ignore_eos else self._eos_token_ids
        stop_token_ids = eos_token_ids | frozenset(params.stop_token_ids)
        seeds = _seeds(params.seed, len(prompts), n)
        # Prompt logprobs are known once for all n, but a request of no token has nothing else to
        # do.
        scores_all = params.prompt_logprobs is None or params.max_tokens == 0
        others = params if scores_all else replace(params, prompt_logprobs=None)
        choices = []
        for number, prompt in enumerate(prompts):
            token_ids = np.array(prompt, dtype=np.int32)
            for index in range(number * n, (number + 1) * n):
                request = Request(
                    next(self._request_ids),
                    token_ids,
                    params if index == number * n else others,
                    seed=seeds[index],
                    stop_token_ids=stop_token_ids,
                    speculation=speculation,
                    origin=origin,
                    grammar=None if grammar is None else grammar.copy(),
                )
                detokenizer = IncrementalDetokenizer(
                    self._tokenizer.backend_tokenizer, prompt, params.skip_special_tokens
                )
                choices.append(Choice(index, request, detokenizer, self.token_texts, events))
        return choices

    # Everything below runs in the engine thread, except _deliver.

    def _run(self) -> None:
        while self._running:
            if not self.core.has_work:
                self._use_idle_time()
            self._run_commands(wait=not self.core.has_work)
            if self._running and self.core.has_work:
                self._step()
        self._fail_all(EngineStopped("the server was stopped before this request was done"))

    def _use_idle_time(self) -> None:
        """Work that can wait, until a command comes."""
        while self._commands.empty():
            try:
                next(self._idle_work)
            except StopIteration:
                return
            except Exception:
                logger.exception("work in idle time failed; it is given up")
                self._idle_work = iter(())

    def _run_commands(self, wait: bool) -> None:
        """Run the commands that have come. wait: there is nothing else to do, so wait for one."""
        while wait or not self._commands.empty():
            command = self._next_command()
            if wait:
                self._measured_until = max(self._measured_until, self._clock())
            try:
                command()
            except Exception:
                logger.exception("a command to the engine failed")
            wait = False

    def _next_command(self) -> Callable[[], None]:
        """Waits for it; long waits are used."""
        while True:
            try:
                return self._commands.get(timeout=self._idle_seconds)
            except queue.Empty:
                self._idle_seconds *= 2
            try:
                self._measure_again(lambda: not self._commands.empty())
            except Exception:
                logger.exception("the profile could not be measured again")

    def _add(self, choices: list[Choice]) -> None:
        for choice in choices:
            try:
                self.core.add_request(choice.request)
                self._choices[choice.request.request_id] = choice
            except Exception as error:
                self._post([(choice, error)])

    def _abort(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            if self._choices.pop(request_id, None) is not None:
                self.core.abort(request_id)

    def _leave(self) -> None:
        self._running = False

    def _step(self) -> None:
        try:
            # From where the last step's time ends: what was done since then for the requests is
            # time of this one.
            step_output = self.core.step(self._measured_until)
            self._measured_until += step_output.seconds.total
            events = [self._to_event(output) for output in step_output.outputs]
        except Exception:
            logger.exception("a step failed; the requests in the engine are given up")
            self._fail_all(EngineError("the engine failed while it worked on this request"))
        else:
            self._post(events, step_output)

    def _to_event(self, output: RequestOutput) -> tuple[Choice, TextDelta | Exception]:
        request_id = output.request.request_id
        if output.request.error is not None:
            kind = NoTokenLeft if output.request.error_is_callers else EngineError
            return self._choices.pop(request_id), kind(output.request.error)
        choice = self._choices[request_id]
        delta = choice.advance(output)
        if delta.finish_reason is not None:
            del self._choices[request_id]
            if output.finish_reason is None:
                self.core.abort(request_id)  # a stop string, of which the core knows nothing
        return choice, delta

    def _fail_all(self, error: EngineError) -> None:
        choices, self._choices = list(self._choices.values()), {}
        for choice in choices:
            try:
                self.core.abort(choice.request.request_id)
            except Exception:
                logger.exception("request %d could not be aborted", choice.request.request_id)
        self._post([(choice, error) for choice in choices])

    def _post(
        self,
        events: list[tuple[Choice, TextDelta | Exception]],
        step_output: StepOutput | None = None,
    ) -> None:
        """Hand the events over to the event loop, all at once."""
        self._loop.call_soon_threadsafe(self._deliver, events, step_output)

    def _deliver(
        self, events: list[tuple[Choice, TextDelta | Exception]], step_output: StepOutput | None
    ) -> None:
        for choice, event in events:
            choice.events.put_nowait(event)
        if step_output is not None:
            for listener in self.listeners:
                listener(step_output)
            self._num_steps += 1
            if self._num_steps == FIRST_STEPS:
                self._check_profile()


def _seeds(seed: int | None, num_prompts: int, n: int) -> list[int]:
    """The seed of every choice, n for each prompt: see AsyncEngine.generate."""
    if seed is None:
        return [secrets.randbits(63) for _ in range(num_prompts * n)]
    return [fold_seed(seed + number * SEED_STRIDE) for number in range(n)] * num_prompts
