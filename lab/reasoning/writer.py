"""A model that writes a few tokens at a time, and how long it took."""

import time
from contextlib import aclosing
from dataclasses import dataclass

from smartspec.core.origin import UNKNOWN_ORIGIN, Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.async_engine import AsyncEngine


@dataclass(frozen=True)
class Written:
    """ended: whether the model ended its answer, not a stop string or the length."""

    token_ids: tuple[int, ...]
    text: str
    ended: bool


class Writer:
    """An engine. seconds: that were spent waiting for it."""

    def __init__(self, engine: AsyncEngine, origin: Origin = UNKNOWN_ORIGIN):
        self._engine, self._origin = engine, origin
        self.seconds = 0.0
        self.num_tokens = 0

    async def write(self, token_ids: list[int], params: SamplingParams) -> Written:
        """Go on after these tokens. A stop string of the params stays in the text. Cancelling it
        ends the request."""
        began, written, text, reason = time.monotonic(), [], "", None
        async with aclosing(
            self._engine.generate([token_ids], params, origin=self._origin)
        ) as deltas:
            async for delta in deltas:
                written += delta.token_ids
                text, reason = text + delta.text, delta.finish_reason
        self.seconds += time.monotonic() - began
        self.num_tokens += len(written)
        stopped_by_text = any(text.endswith(stop) for stop in params.stop)
        return Written(tuple(written), text, reason == "stop" and not stopped_by_text)
