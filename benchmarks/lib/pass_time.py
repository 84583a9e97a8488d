"""Times of passes of a model by rows and of a head's draft passes beside them."""

from dataclasses import replace
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from lib.timing import WALL, bandwidth, in_turns
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.checkpoint.eagle3 import read_head
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.drafting.shipped.head import head_folder
from smartspec.engine.models import load
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

CONTEXT = 128
CLOCKS = ("wall", "cpu")


def compare(
    model: str,
    dtypes: str,
    rows: str,
    prefill: str,
    verify: str,
    repetitions: int,
    head: str | None,
) -> None:
    """Print the tables. Arguments are the options of `step.py passes`."""
    batches = [[1] * int(count) for count in rows.split(",")] + [
        [int(n)] for n in f"{prefill},{verify}".split(",")
    ]
    num_prefill = len(batches) - len(verify.split(","))  # after those a token is scored each
    max_rows, max_len = max(map(len, batches)), CONTEXT + max(map(max, batches))
    loaded = (
        _forms(model)
        if dtypes == "auto"
        else {name: _load(model, name) for name in dtypes.split(",")}
    )
    runners = {name: _runner(model, max_rows, max_len) for name, model in loaded.items()}
    floor = 1e3 * min(model.weight_bytes for model in loaded.values()) / bandwidth()
    main_runner = next(iter(runners.values()))
    beside = None if head is None else _head_runner(head, main_runner, max_rows)
    table = Table(
        "requests",
        "new tokens",
        "scored",
        *(f"{name}, {clock} ms" for name in runners for clock in CLOCKS),
    )
    table.title = f"{model}: weights {floor:.1f} ms"
    for number, batch in enumerate(batches):
        scored = 1 if number < num_prefill else batch[0]
        segments = [
            Segment(slot, CONTEXT, np.arange(n, dtype=np.int32), scored)
            for slot, n in enumerate(batch)
        ]
        best = in_turns(
            [partial(runner.forward, segments) for runner in runners.values()], repetitions
        ).min(axis=0)
        table.add_row(
            str(len(batch)), str(batch[0]), str(scored), *(f"{1e3 * s:.1f}" for s in best.ravel())
        )
    Console(width=120).print(table)
    if beside is not None:
        _compare_head(
            beside, main_runner, [len(batch) for batch in batches if batch[0] == 1], repetitions
        )


def _head_runner(name: str, target: ModelRunner, max_rows: int) -> HeadRunner:
    head, embedding = read_head(head_folder(name, target.loaded.name), target.loaded)
    runner = HeadRunner(head, target, name=name, num_slots=max_rows, embedding=embedding)
    runner.features.fill_(1.0)
    for slot in range(max_rows):
        runner.cache.write_ones(slot, 0, CONTEXT)
    return runner


def _compare_head(
    head: HeadRunner, target: ModelRunner, batches: list[int], repetitions: int
) -> None:
    table = Table(
        "requests", "target, ms", "head after text", "after its draft", "share of the target's"
    )
    for rows in batches:
        segments = [Segment(slot, CONTEXT, np.zeros(1, dtype=np.int32), 1) for slot in range(rows)]
        runs = [
            partial(target.forward, segments),
            partial(head.propose, segments),
            partial(head.propose, segments, list(range(rows))),
        ]
        best = in_turns(runs, repetitions)[..., WALL].min(axis=0)
        table.add_row(
            str(rows), *(f"{1e3 * seconds:.2f}" for seconds in best), f"{best[2] / best[0]:.1%}"
        )
    Console(width=120).print(table)


def _forms(model: str) -> dict[str, LoadedModel]:
    """All layers in one call, a call for each layer, and module by module."""
    whole = _load(model)
    load.PREPARATIONS = load.PREPARATIONS[1:]
    return {
        "layers": whole,
        "layer by layer": replace(whole, fused_pass=None),
        "modules": _load(model),
    }


def _load(model: str, dtype: str = "auto") -> LoadedModel:
    return load.load_model(model, device="cpu", dtype=dtype)


def _runner(loaded: LoadedModel, max_rows: int, max_len: int) -> ModelRunner:
    runner = ModelRunner(loaded, num_slots=max_rows, max_len=max_len)
    for slot in range(max_rows):
        runner.cache.write_ones(slot, 0, CONTEXT)
    return runner
