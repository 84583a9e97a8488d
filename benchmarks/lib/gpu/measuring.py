"""Cells: one engine, one policy, one number of requests, one acceptance."""

import time
import traceback
from collections.abc import Callable

import numpy as np

from lib.gpu.acceptance import StatedAcceptance
from lib.gpu.client import Client
from lib.gpu.counting import Counting
from lib.gpu.plan import LOW, MAX_SEQS, Plan, Rates, named
from lib.gpu.results import Results

OFF, OURS, TABLE = "off", "goodput", "dynamic-sd"


class Measuring:
    """One engine, and who decides its draft lengths: vLLM (off; stock:K, one length; dynamic-sd,
    the best of them by batch size; stock, vLLM as configured) or the plugin (its policies by their
    names). What the plugin learns under a policy it keeps from cell to cell."""

    def __init__(
        self, results: Results, plan: Plan, core, acceptance: StatedAcceptance | None = None
    ):
        self.core, self._results, self._plan, self._acceptance = core, results, plan, acceptance
        self.client, self.counting = Client(core), Counting(core)
        self._own_table = getattr(core.scheduler, "dynamic_sd_lookup", None)
        self._kept: dict[str, object] = {}
        if (speculation := getattr(core.scheduler, "speculation", None)) is not None:
            self._kept[OURS] = speculation
        self.best: dict[int, int] = {}  # length of the best stock:K, by level

    def use(self, policy: str) -> None:
        scheduler, (kind, _, value) = self.core.scheduler, policy.partition(":")
        speculation, table = None, self._own_table
        if kind == "stock" and value:
            table = [int(value)] * (MAX_SEQS + 1)
        elif policy == TABLE:
            levels = [
                min(self.best, key=lambda level: abs(level - size)) for size in range(MAX_SEQS + 1)
            ]
            table = [self.best[level] for level in levels]
        elif kind != "stock" and hasattr(scheduler, "begin"):
            speculation = self._speculation(policy)
            table = [scheduler.num_spec_tokens] * (MAX_SEQS + 1)
        scheduler.speculation, scheduler.dynamic_sd_lookup = speculation, table
        self.counting.watch(speculation)

    def _speculation(self, policy: str) -> object:
        if policy not in self._kept:
            from smartspec.vllm_plugin.settings import Settings

            scheduler = self.core.scheduler
            scheduler.begin(
                Settings(policy=policy, cache=self._plan.folder / "learned", **self._plan.settings)
            )
            if scheduler.speculation is None:
                raise RuntimeError("the plugin is not in use: its warning says why")
            self._kept[policy] = scheduler.speculation
        return self._kept[policy]

    def warm_up(self) -> None:
        """Kernels that are compiled when they are first used: where some drafts are left out,
        others than without."""
        self.state(LOW)
        for level in sorted({1, 16, max(self._plan.levels)}):
            self.client.closed_loop(level, 0.4, 0.2, self.counting.clear)

    def cell(
        self, level: int, policy: str, rates: Rates | None = None, after: Rates | None = None
    ) -> float:
        """Tokens per second, 0 if it failed. rates: stated acceptance. after: what it falls to as
        the window begins."""
        note = (
            "" if rates is None else named(rates) + ("" if after is None else f" to {named(after)}")
        )
        try:
            self.use(policy)
            self.state(rates)
            drafted_before = 0

            def begin() -> None:
                nonlocal drafted_before
                drafted_before = self.counting.steps[-1].drafted if self.counting.steps else 0
                self.counting.clear()
                self.state(after)

            seconds, tokens = self.client.closed_loop(
                level, self._plan.seconds, self._plan.ramp, begin
            )
            figures = self.counting.figures(seconds)
            if after is not None:
                figures["drafted_before"] = drafted_before
                figures["steps_to_change"] = steps_to_change(self.counting.steps, drafted_before)
                figures["lengths_in_order"] = [step.drafted for step in self.counting.steps[:200]]
            speed = tokens / seconds
            self._results.add(
                cell=policy,
                level=level,
                note=note,
                tokens_per_s=speed,
                **figures,
                **self._health(policy),
            )
            return speed
        except Exception:
            self._failed(policy, level=level)
            return 0.0

    def latency(self, rate: float, policy: str, rates: Rates | None = None) -> None:
        """Seconds of requests that arrive at `rate` a second. rates: stated acceptance."""
        try:
            self.use(policy)
            self._state(rates)
            self.counting.clear()
            began = time.perf_counter()
            seconds = np.array(self.client.open_loop(rate, self._plan.arrivals))
            figures = self.counting.figures(time.perf_counter() - began)
            self._results.add(
                arm=policy, rate=rate, note="" if rates is None else named(rates),
                requests=len(seconds), mean_s=float(seconds.mean()),
                p50_s=float(np.median(seconds)), p99_s=float(np.percentile(seconds, 99)), **figures,
                **self._health(policy),
            )  # fmt: skip
        except Exception:
            self._failed(policy, rate=rate)

    def _failed(self, policy: str, **where) -> None:
        self._results.add(problem=policy, **where, error=traceback.format_exc()[-2500:])
        self._try(self.client.drain)

    def cells(
        self, levels: tuple[int, ...], policies: tuple[str, ...], rates: Rates | None = None
    ) -> None:
        """Level by level, all policies. Of stock:K the best length is kept for dynamic-sd."""
        for level in levels:
            speeds = {
                policy: self.cell(level, policy, rates) for policy in policies if policy != TABLE
            }
            fixed = {
                int(name[6:]): speed for name, speed in speeds.items() if name.startswith("stock:")
            }
            if fixed:
                self.best[level] = max(fixed, key=fixed.__getitem__)
        if TABLE in policies and self.best:
            for level in levels:
                self.cell(level, TABLE, rates)

    def state(self, rates: Rates | None) -> None:
        if rates is not None and self._acceptance is not None:
            self._acceptance.set(rates)

    def _health(self, policy: str) -> dict:
        """Steps in which the plugin was out of use, and failures of its controller."""
        scheduler = self.core.scheduler
        speculation = getattr(scheduler, "speculation", None)
        if speculation is None:
            return {}
        controller = getattr(getattr(speculation, "learning", None), "controller", None)
        return {"rest": scheduler.rest.steps, "errors": getattr(controller, "num_errors", None)}

    @staticmethod
    def _try(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            traceback.print_exc()


def steps_to_change(steps: list, before: int) -> int | None:
    """After how many steps another length than `before` was decided; None if never."""
    return next((number for number, step in enumerate(steps) if step.drafted != before), None)
