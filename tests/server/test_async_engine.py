"""The engine thread without HTTP."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from fake_core import make_core
from fake_server import fake_engine

from smartspec.control.records import StepSeconds
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime import async_engine
from smartspec.engine.runtime.async_engine import (
    FIRST_STEPS,
    AsyncEngine,
    EngineError,
    QueueFull,
)


def run(
    tokenizer,
    scenario: Callable[[AsyncEngine], Awaitable],
    idle_work: Iterable[None] = (),
    clock: Callable[[], float] = time.monotonic,
    **options,
) -> None:
    """Run a scenario with a started engine, and stop it."""

    async def body() -> None:
        core = make_core(tokenizer.eos_token_id, **options)
        core.executor.clock = clock
        engine = fake_engine(core, tokenizer, idle_work=idle_work)
        engine.start()
        try:
            await asyncio.wait_for(scenario(engine), timeout=60)
        finally:
            core.executor.let_go()
            await engine.stop()
        assert not engine.alive

    asyncio.run(body())


def with_engine(**options) -> Callable:
    """A test of a scenario."""

    def decorated(scenario: Callable[[AsyncEngine], Awaitable]) -> Callable:
        def test(tokenizer):
            run(tokenizer, scenario, **options)

        return test

    return decorated


async def collect(engine: AsyncEngine, prompts: list[list[int]], n: int = 1, **options) -> list:
    params = SamplingParams(**{"max_tokens": 64} | options)
    return [delta async for delta in engine.generate(prompts, params, n)]


async def seeds_of(
    engine: AsyncEngine, prompts: list[list[int]], n: int = 1, seed: int | None = None
) -> list[int]:
    """The seeds a call gives to its choices, in the order of their index."""
    seeds = []
    add_request = engine.core.add_request
    engine.core.add_request = lambda request: (seeds.append(request.seed), add_request(request))
    await collect(engine, prompts, n, seed=seed)
    engine.core.add_request = add_request
    return seeds


async def happens(event: threading.Semaphore) -> None:
    """It happens once more from now on."""
    while event.acquire(blocking=False):
        pass
    await asyncio.to_thread(event.acquire)


@with_engine()
async def test_choices_have_seeds_of_their_own_and_the_first_has_the_one_given(engine):
    given = await seeds_of(engine, [[5, 6]], n=3, seed=7)
    assert given[0] == 7 and len(set(given)) == 3
    assert await seeds_of(engine, [[5, 6]], n=3, seed=7) == given
    ends = [(await seeds_of(engine, [[5, 6]], seed=seed))[0] for seed in (-(2**63), -1, 2**63 - 1)]
    assert len(set(ends)) == 3, "no two seeds that can be given are one"


@with_engine()
async def test_without_a_seed_all_choices_of_all_prompts_are_independent(engine):
    seeds = await seeds_of(engine, [[5, 6], [5, 6]], n=3) + await seeds_of(engine, [[5, 6]])
    assert len(set(seeds)) == 7


@with_engine()
async def test_with_a_seed_a_prompt_gets_what_it_would_get_alone_whatever_its_companions(engine):
    alone = await seeds_of(engine, [[5, 6]], n=2, seed=7)
    assert await seeds_of(engine, [[9], [5, 6], [5, 6]], n=2, seed=7) == alone * 3


@with_engine(kv_tokens=128)
async def test_a_request_that_can_never_run_is_refused_alone(engine):
    good = asyncio.create_task(collect(engine, [[5] * 20]))
    with pytest.raises(ValueError, match="KV memory"):
        await collect(engine, [[5] * 20], max_tokens=200)
    assert len(await good) == 21


@with_engine()
async def test_queue_full_counts_all_choices(engine):
    engine.core.executor.hold()
    first = asyncio.create_task(collect(engine, [[5], [6]], n=3))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await collect(engine, [[5]], n=3)
    engine.core.executor.let_go()
    await first
    assert engine.num_requests == 0
    await collect(engine, [[5]], n=8)


def test_a_stop_string_ends_the_request_in_the_core_before_the_next_step(tokenizer):
    token_ids = tokenizer("one two three four five six")["input_ids"]

    async def scenario(engine):
        deltas = await collect(
            engine, [token_ids], stop=("three",), ignore_eos=True, max_tokens=400
        )
        num_steps = engine.core.executor.num_steps
        assert deltas[-1].finish_reason == "stop" and deltas[-1].num_output_tokens == 3
        assert await engine.call(lambda: engine.core.has_work) is False
        assert engine.core.executor.num_steps == num_steps == 3

    run(tokenizer, scenario)


@with_engine()
async def test_calls_after_stop_raise_and_earlier_ones_are_answered(engine):
    engine.core.executor.hold()
    request = asyncio.create_task(collect(engine, [[5]]))
    await asyncio.sleep(0)
    pending = asyncio.create_task(engine.call(lambda: 5))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="stopped"):
        await engine.call(lambda: 6)
    engine.core.executor.let_go()
    assert await pending == 5
    await stopping
    with pytest.raises(EngineError, match="stopped"):
        await engine.call(lambda: 7)
    with pytest.raises(EngineError, match="stopped"):
        await collect(engine, [[5]])
    with pytest.raises(EngineError, match="stopped"):
        await request


class Ticks:
    """A clock that stands still but where it is told to go on."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, function: Callable) -> Callable:
        """The function, taking that much longer."""

        def wrapper(*arguments):
            self.now += seconds
            return function(*arguments)

        return wrapper


def test_the_seconds_of_steps_are_all_the_time_the_engine_was_busy_and_none_that_it_waited(
    tokenizer,
):
    """Everything takes a time of its own, a power of two, so that the sums are exact and tell what
    they are made of."""
    ticks, outputs, waited = Ticks(), [], threading.Semaphore(0)

    def waiting() -> Iterator[None]:
        while True:
            ticks.now += 2.0**20
            waited.release()
            yield

    async def scenario(engine):
        core, executor, began = engine.core, engine.core.executor, 0.0
        begin_step, verify = executor.begin_step, executor.verify

        def timed_begin_step(batch, now):
            nonlocal began
            began = now
            return begin_step(batch, now)

        def timed_verify(batch, drafts):
            result = verify(batch, drafts)
            ticks.now += 1.0
            return replace(result, seconds=StepSeconds(0.0, 1.0, ticks.now - began - 1.0))

        executor.begin_step, executor.verify = timed_begin_step, timed_verify
        core.scheduler.schedule = ticks.spend(2.0, core.scheduler.schedule)
        core.controller.learn = ticks.spend(4.0, core.controller.learn)
        engine._to_event = ticks.spend(8.0, engine._to_event)
        core.add_request = ticks.spend(16.0, core.add_request)
        engine.listeners.append(outputs.append)
        for _ in range(2):
            await happens(waited)
            assert len(await collect(engine, [[5] * 3], max_tokens=3)) == 3
        await happens(waited)
        async with aclosing(
            engine.generate([[6]], SamplingParams(max_tokens=400, ignore_eos=True))
        ) as deltas:
            await anext(deltas)
        await engine.call(lambda: None)
        await happens(waited)
        await collect(engine, [[7]], max_tokens=2)

    run(tokenizer, scenario, idle_work=waiting(), clock=ticks)
    host = [output.seconds.host for output in outputs]
    first, later = 16.0 + 2.0, 4.0 + 8.0 + 2.0
    assert host[:7] == [first, later, later] * 2 + [first]
    assert host[7:] == [later] * (len(host) - 9) + [first, later]


@with_engine()
async def test_a_failing_call_raises_for_the_caller_alone(engine):
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda: 1 / 0)
    assert await engine.call(lambda: 5) == 5


def test_idle_work_goes_on_only_while_there_is_nothing_else_to_do(tokenizer):
    core, was_busy, progress = None, set(), threading.Semaphore(0)

    def endless() -> Iterator[None]:
        while True:
            was_busy.add(core is not None and core.has_work)
            progress.release()
            yield

    async def scenario(engine):
        nonlocal core
        core = engine.core
        await happens(progress)
        assert len(await collect(engine, [[5] * 20])) == 21
        await happens(progress)
        assert was_busy == {False}

    run(tokenizer, scenario, idle_work=endless())


def test_idle_work_that_fails_is_given_up_and_nothing_else_is_disturbed(tokenizer, caplog):
    begun = threading.Event()

    def failing() -> Iterator[None]:
        begun.set()
        raise OSError("no such page")
        yield

    async def scenario(engine):
        await asyncio.to_thread(begun.wait)
        assert len(await collect(engine, [[5] * 20])) == 21
        assert len(await collect(engine, [[6] * 20])) == 21

    run(tokenizer, scenario, idle_work=failing())
    assert caplog.text.count("work in idle time failed") == 1


def test_the_profile_is_checked_once_after_the_first_steps(tokenizer):
    checks = []

    async def scenario(engine):
        engine._check_profile = lambda: checks.append(engine.core.executor.num_steps)
        await collect(engine, [[5, 6, 7]], max_tokens=FIRST_STEPS - 1, ignore_eos=True)
        assert not checks
        await collect(engine, [[5, 6, 7]], max_tokens=2 * FIRST_STEPS, ignore_eos=True)

    run(tokenizer, scenario)
    assert len(checks) == 1 and checks[0] >= FIRST_STEPS


def test_long_waits_are_for_measuring_again_until_a_call_comes(tokenizer, monkeypatch):
    monkeypatch.setattr(async_engine, "IDLE_SECONDS", 1e-6)
    begun, interrupted = threading.Event(), threading.Event()

    async def scenario(engine):
        def measure_again(is_wanted):
            begun.set()
            while not is_wanted():
                pass
            interrupted.set()
            raise RuntimeError("whatever goes wrong")

        engine._measure_again = measure_again
        await asyncio.to_thread(begun.wait)
        assert len(await collect(engine, [[5] * 20])) == 21
        assert interrupted.is_set()

    run(tokenizer, scenario)
