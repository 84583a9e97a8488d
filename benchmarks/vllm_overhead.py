"""What SmartSpec adds to a step of vLLM's scheduler: OMP_NUM_THREADS=1 python benchmarks/vllm_overhead.py

The plugin runs around a stand-in for vLLM's scheduler (tests/vllm_plugin/stub), which feeds requests as vLLM's does,
with a target whose text and times are known. The time of everything the scheduler asks of SmartSpec is added up step by
step: what the next step waits for, `plugin` and apart from it `controller` (checks, estimates, plan), and `meanwhile`,
what is done while a step runs (learning, reports, with those of the controller). Milliseconds, median and 95th
percentile over steps in which all requests decode. CPU time of the thread: what other programs take does not count.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).parents[1] / "tests" / "vllm_plugin"
HOOKS = ("before_schedule", "after_schedule", "before_update", "after_update")
ASKED = ("plan", "cut")
MEANWHILE = ("while_running",)
NUM_WARM_UP_STEPS = 60  # the trial of lengths, and numpy's first calls
METHODS = {"ngram": False, "draft_model": False, "draft_model, asynchronous": True}


class Timed:
    """Adds up the seconds that methods take."""

    def __init__(self):
        self.seconds = 0.0

    def wrap(self, thing: object, names: tuple[str, ...]) -> None:
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method):
        def call(*arguments):
            began = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.thread_time() - began

        return call


def measure(method: str, num_requests: int, num_tokens: int) -> np.ndarray:
    """Seconds of each step: float [steps, 3], of the plugin without the controller, of the controller, and of both
    meanwhile."""
    from toy_engine import ToyEngine, make_config

    from smartspec.control import SafeController
    from smartspec.vllm_plugin import Scheduler

    name, controller, plugin, meanwhile = method.partition(",")[0], Timed(), Timed(), Timed()
    with TemporaryDirectory() as folder:
        config = make_config(Path(folder), method=name, is_async=METHODS[method], settings={"metrics_seconds": 1})
        scheduler = Scheduler(config)
        scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens = num_requests, 16 * num_requests
        scheduler.dynamic_sd_lookup = [scheduler.num_spec_tokens] * (num_requests + 1)
        scheduler.cache_config.num_gpu_blocks = 100 * num_requests
        engine = ToyEngine(scheduler, has_passes=name == "draft_model")
        plugin.wrap(scheduler.speculation, HOOKS)
        meanwhile.wrap(scheduler.speculation, MEANWHILE)
        make_controller = scheduler.speculation._make_controller

        def make_timed(latency) -> SafeController:
            made = make_controller(latency)
            controller.wrap(made, ASKED)
            return made

        scheduler.speculation._make_controller = make_timed
        for number in range(num_requests):
            engine.add(number, prompt_tokens=100, max_tokens=num_tokens)
        marks, execute = [], engine._execute

        def note(output):
            marks.append((plugin.seconds, controller.seconds, meanwhile.seconds, len(output.num_scheduled_tokens)))
            return execute(output)

        engine._execute = note
        engine.run()
    totals = np.array(marks)
    steps = np.diff(totals[:, :3], axis=0)[(totals[1:, 3] == num_requests)][NUM_WARM_UP_STEPS:]
    return np.stack([steps[:, 0] - steps[:, 1], steps[:, 1], steps[:, 2]], axis=1)


def main(
    requests: Annotated[str, typer.Option(help="Numbers of requests, separated by commas.")] = "32,256",
    tokens: Annotated[int, typer.Option(min=200, help="New tokens per request.")] = 600,
) -> None:
    os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # nothing to warn about
    sys.path[:0] = [str(TESTS), str(TESTS / "stub")]
    table = Table("method", "requests", title="Milliseconds a step", title_justify="left", box=SIMPLE)
    for column in ("plugin", "p95", "controller", "p95", "waited for", "p95", "meanwhile", "p95", "steps"):
        table.add_column(column, justify="right")
    for method in METHODS:
        for number in map(int, requests.split(",")):
            steps = 1e3 * measure(method, number, tokens)
            columns = np.insert(steps, 2, steps[:, :2].sum(axis=1), axis=1)
            figures = [f"{np.percentile(column, q):.3f}" for column in columns.T for q in (50, 95)]
            table.add_row(method, str(number), *figures, str(len(steps)))
    Console(width=130).print(table)


# "\b" keeps typer from joining the lines of a paragraph, and with them the commands.
main.__doc__ = "\b\n" + __doc__.replace("\n\n", "\n\n\b\n")

if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
