"""The engine thread without HTTP."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing

import pytest
from fake_core import make_core

from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError, QueueFull


def run(tokenizer, scenario: Callable[[AsyncEngine], Awaitable], idle_work: Iterable[None] = (), **options) -> None:
    """Run a scenario with a started engine, and stop it."""

    async def body() -> None:
        core = make_core(tokenizer.eos_token_id, **options)
        engine = AsyncEngine(
            core,
            tokenizer,
            eos_token_ids=frozenset({tokenizer.eos_token_id}),
            vocab_size=len(tokenizer),
            max_model_len=512,
            max_batch=4,
            max_queue=4,
            idle_work=idle_work,
        )
        engine.start()
        try:
            await asyncio.wait_for(scenario(engine), timeout=60)
        finally:
            core.executor.let_go()
            await engine.stop()
        assert not engine.alive

    asyncio.run(body())


async def collect(engine: AsyncEngine, prompts: list[list[int]], n: int = 1, **options) -> list:
    params = SamplingParams(**{"max_tokens": 64} | options)
    return [delta async for delta in engine.generate(prompts, params, n)]


def test_deltas_add_up(tokenizer):
    token_ids = tokenizer("alpha beta 🎉 gamma")["input_ids"]

    async def scenario(engine):
        deltas = await collect(engine, [token_ids])
        assert [t for delta in deltas for t in delta.token_ids] == [*token_ids, tokenizer.eos_token_id]
        assert deltas[-1].num_output_tokens == len(token_ids) + 1
        assert "".join(delta.text for delta in deltas) == "alpha beta 🎉 gamma"
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]

    run(tokenizer, scenario)
    run(tokenizer, scenario, draft_length=5)


def test_choices_have_seeds_of_their_own_and_the_first_has_the_one_given(tokenizer):
    async def scenario(engine):
        seeds = []
        add_request = engine.core.add_request
        engine.core.add_request = lambda request: (seeds.append(request.seed), add_request(request))
        await collect(engine, [[5, 6]], n=3, seed=7)
        await collect(engine, [[5, 6]], n=3, seed=7)
        await collect(engine, [[5, 6]], n=3, seed=None)
        await collect(engine, [[5, 6]], seed=-1)
        assert seeds[0] == 7 and seeds[:3] == seeds[3:6]
        assert len(set(seeds[:3])) == len(set(seeds[6:9])) == 3
        assert all(0 <= seed < 2**63 for seed in seeds)

    run(tokenizer, scenario)


def test_a_request_that_can_never_run_is_refused_alone(tokenizer):
    async def scenario(engine):
        good = asyncio.create_task(collect(engine, [[5] * 20]))
        with pytest.raises(ValueError, match="KV memory"):
            await collect(engine, [[5] * 20], max_tokens=200)
        assert len(await good) == 21

    run(tokenizer, scenario, kv_tokens=128)


def test_queue_full_counts_all_choices(tokenizer):
    async def scenario(engine):
        engine.core.executor.hold()
        first = asyncio.create_task(collect(engine, [[5], [6]], n=3))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await collect(engine, [[5]], n=3)
        engine.core.executor.let_go()
        await first
        assert engine.num_requests == 0
        await collect(engine, [[5]], n=8)

    run(tokenizer, scenario)


def test_closing_the_iterator_aborts_what_is_left(tokenizer):
    async def scenario(engine):
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        async with aclosing(engine.generate([[5], [6]], params)) as deltas:
            await anext(deltas)
        # A call is answered between two steps, after the abort that was asked for before it.
        assert await engine.call(lambda: (engine.core.num_running, engine.core.num_waiting)) == (0, 0)
        assert sorted(engine.core.executor.released) == [0, 1]

    run(tokenizer, scenario)


def test_a_stop_string_ends_the_request_in_the_core_before_the_next_step(tokenizer):
    token_ids = tokenizer("one two three four five six")["input_ids"]

    async def scenario(engine):
        deltas = await collect(engine, [token_ids], stop=("three",), ignore_eos=True, max_tokens=400)
        num_steps = engine.core.executor.num_steps
        assert deltas[-1].finish_reason == "stop" and deltas[-1].num_output_tokens == 3
        assert await engine.call(lambda: engine.core.has_work) is False
        assert engine.core.executor.num_steps == num_steps == 3

    run(tokenizer, scenario)


def test_stop_ends_what_is_under_way(tokenizer):
    async def scenario(engine):
        engine.core.executor.hold()
        request = asyncio.create_task(collect(engine, [[5]]))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        engine.core.executor.let_go()
        await stopping
        with pytest.raises(EngineError, match="stopped"):
            await request
        with pytest.raises(EngineError, match="stopped"):
            await collect(engine, [[5]])

    run(tokenizer, scenario)


def test_a_failing_call_raises_for_the_caller_alone(tokenizer):
    async def scenario(engine):
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda: 1 / 0)
        assert await engine.call(lambda: 5) == 5

    run(tokenizer, scenario)


def test_idle_work_goes_on_only_while_there_is_nothing_else_to_do(tokenizer):
    core, was_busy, progress = None, set(), threading.Semaphore(0)

    def endless() -> Iterator[None]:
        while True:
            was_busy.add(core is not None and core.has_work)
            progress.release()
            yield

    async def some_progress() -> None:
        while progress.acquire(blocking=False):
            pass
        await asyncio.to_thread(progress.acquire)

    async def scenario(engine):
        nonlocal core
        core = engine.core
        await some_progress()
        assert len(await collect(engine, [[5] * 20])) == 21
        await some_progress()
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
