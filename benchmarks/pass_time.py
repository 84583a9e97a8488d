"""Milliseconds of one pass of a model by rows: layers in one call, operator by operator, and what memory allows.

    python benchmarks/pass_time.py --rows 1,2,4,8,16,64
    python benchmarks/pass_time.py --model FOLDER --dtypes float32,auto,bfloat16
    python benchmarks/pass_time.py --head head

All engines are in this process and take turns pass by pass, so that they see the same machine; the best
of each counts. weights: what reading every weight once takes at the bandwidth measured here. cpu: time of all threads,
which says more than the clock while other processes have the cores.

With --head also one draft pass of a head behind the text and behind its own draft, Python around it included, and the
latter's share of the target's pass.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head_checkpoint import read_head
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.drafting.shipped_head import head_folder
from smartspec.engine.models import load
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

CONTEXT = 128
READ_BYTES = 1 << 28
CLOCKS = ("wall", "cpu")


def main(
    model: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = DEFAULT_MODEL,
    dtypes: Annotated[str, typer.Option(help="As in `smartspec serve`; several are compared.")] = "auto",
    rows: Annotated[str, typer.Option(help="Requests with one new token each, separated by commas.")] = "1,2,4,8,16,32",
    prefill: Annotated[str, typer.Option(help="Lengths of one prompt, separated by commas.")] = "128,512",
    verify: Annotated[str, typer.Option(help="Tokens of one request that verifies a draft.")] = "2,6,12",
    repetitions: Annotated[int, typer.Option(min=1)] = 15,
    head: Annotated[str | None, typer.Option(help="A head's folder, or head for the model's own.")] = None,
) -> None:
    """Print the table."""
    batches = [[1] * int(count) for count in rows.split(",")] + [[int(n)] for n in f"{prefill},{verify}".split(",")]
    num_prefill = len(batches) - len(verify.split(","))  # behind those a token is scored each
    max_rows, max_len = max(map(len, batches)), CONTEXT + max(map(max, batches))
    loaded = _forms(model) if dtypes == "auto" else {name: _load(model, name) for name in dtypes.split(",")}
    runners = {name: _runner(model, max_rows, max_len) for name, model in loaded.items()}
    floor = 1e3 * min(model.weight_bytes for model in loaded.values()) / _bandwidth()
    main_runner = next(iter(runners.values()))
    beside = None if head is None else _head_runner(head, main_runner, max_rows)
    table = Table("requests", "new tokens", "scored", *(f"{name}, {clock} ms" for name in runners for clock in CLOCKS))
    table.title = f"{model}: weights {floor:.1f} ms"
    for number, batch in enumerate(batches):
        scored = 1 if number < num_prefill else batch[0]
        segments = [Segment(slot, CONTEXT, np.arange(n, dtype=np.int32), scored) for slot, n in enumerate(batch)]
        best = {name: (float("inf"), float("inf")) for name in runners}
        for _ in range(repetitions):
            for name, runner in runners.items():
                best[name] = tuple(map(min, best[name], _seconds(partial(runner.forward, segments))))
        table.add_row(
            str(len(batch)), str(batch[0]), str(scored), *(f"{1e3 * s:.1f}" for pair in best.values() for s in pair)
        )
    Console(width=120).print(table)
    if beside is not None:
        _compare_head(beside, main_runner, [len(batch) for batch in batches if batch[0] == 1], repetitions)


def _head_runner(name: str, target: ModelRunner, max_rows: int) -> HeadRunner:
    head, embedding = read_head(head_folder(name, target.loaded.name), target.loaded)
    runner = HeadRunner(head, target, name=name, num_slots=max_rows, embedding=embedding)
    runner.features.fill_(1.0)
    for slot in range(max_rows):
        runner.cache.write_ones(slot, 0, CONTEXT)
    return runner


def _compare_head(head: HeadRunner, target: ModelRunner, batches: list[int], repetitions: int) -> None:
    table = Table("requests", "target, ms", "head behind text", "behind its draft", "share of the target's")
    for rows in batches:
        segments = [Segment(slot, CONTEXT, np.zeros(1, dtype=np.int32), 1) for slot in range(rows)]
        runs = [
            partial(target.forward, segments),
            partial(head.propose, segments),
            partial(head.propose, segments, list(range(rows))),
        ]
        best = [float("inf")] * len(runs)
        for _ in range(repetitions):
            best = [min(seconds, _seconds(run)[0]) for seconds, run in zip(best, runs, strict=True)]
        table.add_row(str(rows), *(f"{1e3 * seconds:.2f}" for seconds in best), f"{best[2] / best[0]:.1%}")
    Console(width=120).print(table)


def _forms(model: str) -> dict[str, LoadedModel]:
    """All layers in one call, a call for each layer, and module by module."""
    whole = _load(model)
    load.PREPARATIONS = load.PREPARATIONS[1:]
    return {"layers": whole, "layer by layer": replace(whole, fused_pass=None), "modules": _load(model)}


def _load(model: str, dtype: str = "auto") -> LoadedModel:
    return load.load_model(model, device="cpu", dtype=dtype)


def _runner(loaded: LoadedModel, max_rows: int, max_len: int) -> ModelRunner:
    runner = ModelRunner(loaded, num_slots=max_rows, max_len=max_len)
    for slot in range(max_rows):
        runner.cache.write_ones(slot, 0, CONTEXT)
    return runner


def _seconds(run: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of processors in all threads of this process."""
    began = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def _bandwidth() -> float:
    """Bytes a second that all threads read."""
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / min(_seconds(memory.sum)[0] for _ in range(5))


if __name__ == "__main__":
    typer.run(main)
