"""What SmartSpec adds to a step of vLLM's scheduler, around a stand-in for it with a target of
known text and times."""

import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.table import Table

from lib.commands import table_of
from lib.vllm_timed import CONTROLLER, HOOKS, MEANWHILE, Timed

NUM_WARM_UP_STEPS = 60  # the trial of lengths, and numpy's first calls
METHODS = {"ngram": False, "draft_model": False, "draft_model, asynchronous": True}


def measure(method: str, num_requests: int, num_tokens: int) -> np.ndarray:
    """Seconds of each step: float [steps, 3], of the plugin without the controller, of the
    controller, and of both meanwhile."""
    from toy_engine import ToyEngine, make_config

    from smartspec.control import SafeController
    from smartspec.vllm_plugin import Scheduler

    name = method.partition(",")[0]
    plugin, meanwhile = Timed(time.thread_time), Timed(time.thread_time)
    controller = Timed(time.thread_time, within=plugin)
    with TemporaryDirectory() as folder:
        config = make_config(
            Path(folder), method=name, is_async=METHODS[method], settings={"metrics_seconds": 1}
        )
        scheduler = Scheduler(config)
        scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens = (
            num_requests,
            16 * num_requests,
        )
        scheduler.dynamic_sd_lookup = [scheduler.num_spec_tokens] * (num_requests + 1)
        scheduler.cache_config.num_gpu_blocks = 100 * num_requests
        engine = ToyEngine(scheduler)
        plugin.wrap(scheduler.speculation, HOOKS)
        meanwhile.wrap(scheduler.speculation, MEANWHILE)
        make_controller = scheduler.speculation.learner.make_controller

        def make_timed(latency) -> SafeController:
            made = make_controller(latency)
            controller.wrap(made, CONTROLLER)
            return made

        scheduler.speculation.learner.make_controller = make_timed
        for number in range(num_requests):
            engine.add(number, prompt_tokens=100, max_tokens=num_tokens)
        marks, execute = [], engine._execute

        def note(output):
            marks.append(
                (
                    plugin.seconds,
                    controller.seconds,
                    meanwhile.seconds,
                    len(output.num_scheduled_tokens),
                )
            )
            return execute(output)

        engine._execute = note
        engine.run()
    totals = np.array(marks)
    steps = np.diff(totals[:, :3], axis=0)[(totals[1:, 3] == num_requests)][NUM_WARM_UP_STEPS:]
    return np.stack([steps[:, 0] - steps[:, 1], steps[:, 1], steps[:, 2]], axis=1)


def results_table(requests: list[int], num_tokens: int) -> Table:
    """Median and 95th percentile in milliseconds, by method and number of requests."""
    rows = []
    for method, number in product(METHODS, requests):
        steps = 1e3 * measure(method, number, num_tokens)
        columns = np.insert(steps, 2, steps[:, :2].sum(axis=1), axis=1)
        figures = [f"{np.percentile(column, q):.3f}" for column in columns.T for q in (50, 95)]
        rows.append([method, number, *figures, len(steps)])
    names = (
        "method",
        "requests",
        "plugin",
        "p95",
        "controller",
        "p95",
        "waited for",
        "p95",
        "meanwhile",
        "p95",
        "steps",
    )
    return table_of("Milliseconds a step", names, rows)
