"""The engine's state, several times a second, for clients that watch. Without such clients nothing
is computed."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from smartspec.core.batch import StepOutput
from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.server.http.event_stream import event
from smartspec.server.live.metrics import kv_use_ratio

PERIOD_SECONDS = 0.25
MAX_STEPS = 64  # shown of one period, the last ones
MAX_CLASSES = 8  # shown of one period, those with most draft tokens


@dataclass
class Recent:
    """The steps since the last event."""

    num_steps: int = 0
    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    steps: deque[dict] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    # verified, accepted: draft tokens by workload class, "" for none
    verified: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    def add(self, output: StepOutput) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_generated_tokens += sum(len(o.new_token_ids) for o in output.outputs)
        self.num_prompt_tokens += output.num_prefill_tokens
        self.steps.append(
            {
                "rows": np.bincount(output.verified_lengths).tolist()
                if output.verified_lengths
                else [],
                "accepted": output.num_accepted_tokens,
                "predicted_seconds": output.predicted_seconds,
                "measured_seconds": output.seconds.total,
            }
        )
        # The outputs of decoding requests stand before those of prompts that ended.
        for row, length in zip(output.outputs, output.verified_lengths, strict=False):
            if length:
                name = row.request.speculation.workload_class or ""
                self.verified[name] += length
                self.accepted[name] += row.num_accepted

    def summary(self) -> dict:
        """JSON-able; rows: by draft length, how many requests verified so many draft tokens."""
        classes = [
            {"name": name, "verified": count, "accepted": self.accepted[name]}
            for name, count in self.verified.most_common(MAX_CLASSES)
        ]
        return {
            "num_steps": self.num_steps,
            "generated_tokens": self.num_generated_tokens,
            "prompt_tokens": self.num_prompt_tokens,
            "steps": list(self.steps),
            "classes": classes,
        }


class LiveFeed:
    """Sends the same events to all clients that watch. about: constant facts, JSON-able, part of
    every event."""

    def __init__(self, engine: AsyncEngine, about: dict):
        self._engine = engine
        self._about = about
        self._num_viewers = 0
        self._recent, self._began = Recent(), 0.0
        self._coming: asyncio.Task[bytes | None] | None = None
        self._decision: dict | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events until the iterator is closed or the engine stops, every
        PERIOD_SECONDS."""
        self._num_viewers += 1
        if self._num_viewers == 1:
            self._recent, self._began = Recent(), time.monotonic()
            self._engine.listeners.append(self._observe)
        try:
            while (made := await self._next()) is not None:
                yield made
        finally:
            self._num_viewers -= 1
            if not self._num_viewers:
                self._engine.listeners.remove(self._observe)

    def _observe(self, output: StepOutput) -> None:
        self._recent.add(output)

    async def _next(self) -> bytes | None:
        """The next event, which all clients wait for."""
        if self._coming is None or self._coming.done():
            self._coming = asyncio.create_task(self._make())
        return await asyncio.shield(self._coming)

    async def _make(self) -> bytes | None:
        await asyncio.sleep(PERIOD_SECONDS)
        if not self._engine.alive:
            return None
        core, recent, began = self._engine.core, self._recent, self._began
        self._recent, self._began = Recent(), time.monotonic()
        try:
            if recent.num_steps or self._decision is None:
                self._decision = await self._engine.call(core.controller.explain)
        except EngineError:
            return None
        state = {
            "running": core.num_running,
            "waiting": core.num_waiting,
            "kv_use_ratio": kv_use_ratio(core),
            "seconds": self._began - began,
            "decision": self._decision,
        }
        return event(self._about | state | recent.summary())
