"""Requests of one client, who drives the engine as vLLM's own loop does."""

import time
from collections.abc import Callable

import numpy as np

PROMPT, SHORTEST, LONGEST = 128, 128, 256  # tokens


class Client:
    def __init__(self, core):
        self._core, self._sent = core, 0
        self.tokens = 0
        self.alive: dict[str, list[int]] = {}
        self.done: dict[str, list[int]] = {}

    def send(self, prompt: list[int], max_tokens: int, seed: int) -> str:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        name = str(self._sent)
        self._sent += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=seed)
        request = EngineCoreRequest(
            request_id=name, prompt_token_ids=prompt, mm_features=None, sampling_params=params,
            pooling_params=None, arrival_time=time.time(), lora_request=None, cache_salt=None,
            data_parallel_rank=None,
        )  # fmt: skip
        self._core.add_request(*self._core.preprocess_add_request(request))
        self.alive[name] = []
        return name

    def step(self) -> None:
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        for group in (outputs or {}).values():
            for output in group.outputs:
                told = self.alive.get(output.request_id)
                if told is None:
                    continue
                told.extend(output.new_token_ids)
                self.tokens += len(output.new_token_ids)
                if output.finish_reason is not None:
                    self.done[output.request_id] = self.alive.pop(output.request_id)

    def drain(self) -> None:
        """Ends all that is left."""
        if self.alive:
            self._core.abort_requests(list(self.alive))
            self.alive.clear()
        ends = time.perf_counter() + 10
        while (
            self._core.scheduler.has_requests() or self._core.batch_queue
        ) and time.perf_counter() < ends:
            self.step()

    def answers(
        self, prompts: list[list[int]], max_tokens: int, seconds: float = 60.0
    ) -> list[list[int]]:
        """Greedy answers to all prompts at once. TimeoutError after so many seconds."""
        names = [self.send(list(prompt), max_tokens, seed) for seed, prompt in enumerate(prompts)]
        ends = time.perf_counter() + seconds
        while self.alive:
            if time.perf_counter() > ends:
                raise TimeoutError(f"{len(self.alive)} of {len(prompts)} requests did not end")
            self.step()
        self.drain()
        return [self.done.pop(name) for name in names]

    def open_loop(self, rate: float, seconds: float) -> list[float]:
        """Poisson arrivals for so many seconds, the same ones at each call. Seconds of each request
        from its arrival to its last token, in the order in which they end."""
        rng, arrived, latencies = np.random.default_rng(11), {}, []
        moments = np.cumsum(rng.exponential(1.0 / rate, int(2 * rate * seconds) + 50))
        moments = moments[moments < seconds].tolist()
        prompts = rng.integers(10, 100_000, (len(moments), PROMPT)).tolist()
        lengths = rng.integers(SHORTEST, LONGEST + 1, len(moments)).tolist()
        self.done.clear()
        began = time.perf_counter()
        while len(latencies) < len(moments):
            now, number = time.perf_counter() - began, len(arrived)
            if number < len(moments) and moments[number] <= now:
                arrived[self.send(prompts[number], lengths[number], seed=number)] = moments[number]
                continue
            if self.alive:
                self.step()
            else:
                time.sleep(moments[number] - now)
            ended = time.perf_counter() - began
            latencies += [ended - arrived[name] for name in self.done]
            self.done.clear()
        self.drain()
        return latencies

    def closed_loop(
        self, level: int, seconds: float, ramp: float, begin: Callable[[], None]
    ) -> tuple[float, int]:
        """Keeps `level` requests running. Seconds and tokens of a window, which begins `ramp`
        seconds after all were admitted with a call of `begin`. The first requests are of all
        lengths, so that they do not end together."""
        rng, number = np.random.default_rng(7), 0
        self.done.clear()

        def send(shortest: int) -> None:
            nonlocal number
            prompt = rng.integers(10, 100_000, PROMPT).tolist()
            self.send(prompt, int(rng.integers(shortest, LONGEST + 1)), seed=number)
            number += 1

        def step() -> None:
            self.step()
            while len(self.alive) < level:
                send(SHORTEST)

        def run_until(moment: float) -> None:
            while time.perf_counter() < moment:
                step()

        for _ in range(level):
            send(8)
        while self._core.scheduler.waiting:
            step()
        run_until(time.perf_counter() + ramp)
        begin()
        began, before = time.perf_counter(), self.tokens
        run_until(began + seconds)
        taken, tokens = time.perf_counter() - began, self.tokens - before
        self.drain()
        return taken, tokens
