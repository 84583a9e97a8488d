"""The live line under a running server."""

import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from smartspec.cli.totals import StepTotals

if TYPE_CHECKING:
    from rich.table import Table

    from smartspec.core.engine_core import EngineCore
    from smartspec.engine.runtime.async_engine import AsyncEngine

WINDOW_SECONDS = 5.0
REFRESHES_PER_SECOND = 2


def live_state(async_engine: "AsyncEngine", policy: str) -> AbstractContextManager:
    """Shows the state at the bottom of the terminal as long as the context lasts; printed lines
    scroll above it."""
    from rich.live import Live

    totals = StepTotals()
    async_engine.listeners.append(totals.add)
    window = Window(totals)
    return Live(
        get_renderable=lambda: state_table(
            async_engine.core, policy, *window.slide(time.monotonic())
        ),
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
    )


class Window:
    """Totals of the last WINDOW_SECONDS."""

    def __init__(self, totals: StepTotals):
        self._totals = totals
        self._past: deque[tuple[float, StepTotals]] = deque()

    def slide(self, now: float) -> tuple[StepTotals, float]:
        """Totals within the window that ends now, and its length in seconds."""
        self._past.append((now, replace(self._totals)))
        while now - self._past[0][0] > WINDOW_SECONDS:
            self._past.popleft()
        start, totals = self._past[0]
        return self._past[-1][1].since(totals), now - start


def state_table(core: "EngineCore", policy: str, recent: StepTotals, seconds: float) -> "Table":
    """One row: what runs and waits now, and the rates of the recent steps."""
    from rich.table import Table

    blocks = core.scheduler.blocks
    has_drafts = recent.num_verified_tokens > 0
    cells = {
        "policy": policy,
        "running": str(core.num_running),
        "waiting": str(core.num_waiting),
        "tokens/s": f"{recent.num_generated_tokens / seconds:.1f}" if seconds else "-",
        "acceptance": f"{recent.acceptance_rate:.0%}" if has_drafts else "-",
        "mean k": f"{recent.mean_length:.2f}" if recent.num_decode_rows else "-",
        "KV use": f"{blocks.num_used_blocks / blocks.num_blocks:.0%}",
    }
    table = Table(*cells)
    table.add_row(*cells.values())
    return table
