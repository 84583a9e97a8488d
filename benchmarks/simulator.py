"""Is the simulator right? Mean end-to-end latency of the same requests, simulated and live, at
three loads.

    python benchmarks/simulator.py --rates 0.5,1.5,3

A first live run at the longest fixed length records which drafts exist and which of their tokens
are right. Then the live engine serves Poisson arrivals under `goodput`. The simulator gets the same
arrivals, the same numbers of tokens and the recorded acceptance. Its step times are the profile
that the engine measured at the start of that run; the machine may have been faster or slower when
an earlier profile was made. If the speed changes during the run, the live passes take longer than
the profile says. A column shows by how much. The last ratio is of a simulation with passes of that
length.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from lib.commands import MIXED, PromptsPath, application, console_of, prompts_by_task, run, table_of
from lib.rates import load_plan
from lib.servers import ServerCommand, running, server_command
from rich.table import Table

from smartspec.bench.client import Target
from smartspec.bench.load import LoadPlan, run_load
from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.scheduler import Scheduler
from smartspec.engine.cache_folder import cache_folder
from smartspec.engine.runtime.config import LONG_PREFILL_TOKEN_THRESHOLD
from smartspec.sim.executor import LOOKUP, SimExecutor
from smartspec.sim.virtual_engine import Run, VirtualEngine
from smartspec.sim.world.recorded_acceptance import RecordedGroundTruth, read_recordings
from smartspec.sim.world.step_time import GroundTruthTime
from smartspec.sim.world.traffic import Traffic
from smartspec.workload.records import RequestRecord

# The engine's defaults, which the live server runs with.
MAX_BATCH, MAX_BATCHED_TOKENS, KV_TOKENS, BLOCK_SIZE, MAX_DRAFT_TOKENS = 32, 512, 32 * 1024, 16, 10
COLUMNS = (
    "requests/s",
    "live s",
    "simulated s",
    "simulated / live",
    "passes / profile",
    "simulated at that / live",
)
console = console_of(120)
app = application(__doc__)


def serve(policy: str, plan: LoadPlan, log: Path) -> list[RequestRecord]:
    """Records, in order of arrival, of a new server that has just profiled itself and writes a
    decision log."""
    arguments = [*server_command(policy, None, None).arguments, "--decision-log", str(log)]
    command = ServerCommand(
        arguments, {"SMARTSPEC_CACHE": str(cache_without_profiles(log.with_suffix(".cache")))}
    )
    with running(command, log.with_suffix(".log")) as target:
        return load(target, plan)


def cache_without_profiles(folder: Path) -> Path:
    """A new cache folder that shares all but the profiles with the user's."""
    folder.mkdir()
    for name in ("models", "kernels"):
        (cache_folder() / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_folder() / name)
    return folder


def load(target: Target, plan: LoadPlan) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    asyncio.run(run_load(target, plan, records.append))
    if errors := [record.error for record in records if record.error is not None]:
        raise ValueError(f"{len(errors)} requests failed: {errors[0]}")
    order = {request.prompt_id: i for i, request in enumerate(plan.requests)}
    return sorted(records, key=lambda record: order[record.prompt_id])


def simulated_seconds(
    plan: LoadPlan,
    records: list[RequestRecord],
    time: GroundTruthTime,
    ground_truth: RecordedGroundTruth,
    curves: LatencyModel,
) -> float:
    """Mean end-to-end latency of the plan in the simulator."""
    traffic = Traffic(
        np.array([record.num_prompt_tokens for record in records]),
        np.array([record.num_output_tokens for record in records]),
        np.zeros(len(records), dtype=np.int64),
        arrival_seconds=plan.arrival_seconds,
    )
    executor = SimExecutor(time, ground_truth, drafter=LOOKUP, num_slots=MAX_BATCH, seed=0)
    controller = Controller(
        "goodput", MAX_DRAFT_TOKENS, LatencyModel(curves.target), drafters=(LOOKUP,), strict=True
    )
    scheduler = Scheduler(
        BlockManager(KV_TOKENS // BLOCK_SIZE, BLOCK_SIZE, MAX_BATCH),
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_model_len=8192,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        long_prefill_token_threshold=LONG_PREFILL_TOKEN_THRESHOLD,
    )
    run = Run()
    VirtualEngine(EngineCore(scheduler, executor, controller), executor).serve(traffic, run)
    return fmean(record.end_to_end_seconds for record in run.records)


def slowdown(live: RecordedLog, profile: LatencyModel) -> float:
    """How much longer the target's passes of a run took than its profile says."""
    records = list(live)
    predicted = sum(
        profile.predict(r.view, r.outcome.plan, r.outcome.verified).target for r in records
    )
    return sum(record.outcome.seconds.target for record in records) / predicted


def between_passes(live: RecordedLog) -> float:
    """Seconds between two passes of a run, learning and writing the log included; the median leaves
    idle time out."""
    records = list(live)
    return median(
        after.view.now - record.view.now - record.outcome.seconds.target
        for record, after in pairwise(records)
    )


def validate(plan_of: Callable[[float], LoadPlan], rates: list[float], folder: Path) -> Table:
    rows = []
    for rate in rates:
        plan = plan_of(rate)
        drafts_log, live_log = folder / f"drafts{rate:g}.jsonl", folder / f"live{rate:g}.jsonl"
        console.print(f"rate {rate:g}: recording drafts", highlight=False)
        serve(f"fixed:{MAX_DRAFT_TOKENS}", LoadPlan(plan.requests, concurrency=1), drafts_log)
        console.print(f"rate {rate:g}: live run", highlight=False)
        records = serve("goodput", plan, live_log)
        live = RecordedLog(live_log)
        host_seconds = between_passes(live)
        curves = LatencyModel.from_dict(live.header.profile)
        recordings = read_recordings(RecordedLog(drafts_log))
        if len(recordings) != len(records):
            raise ValueError(
                f"the log holds {len(recordings)} of {len(records)} requests: {drafts_log.name} is "
                "cut off"
            )
        ground_truth = RecordedGroundTruth(recordings, MAX_DRAFT_TOKENS)
        measured = fmean(record.end_to_end_seconds for record in records)
        factor = slowdown(live, curves)
        simulated, at_that_speed = (
            simulated_seconds(
                plan,
                records,
                GroundTruthTime(curves.target, (), host_seconds, factor=f),
                ground_truth,
                curves,
            )
            for f in (1.0, factor)
        )
        ratios = simulated / measured, factor, at_that_speed / measured
        rows.append(
            (
                f"{rate:g}",
                f"{measured:.3f}",
                f"{simulated:.3f}",
                *(f"{ratio:.3f}" for ratio in ratios),
            )
        )
    return table_of("mean end-to-end latency", COLUMNS, rows, num_names=0)


@app.command(help=app.info.help)
def main(
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "0.5,1.5,3",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a live run.")] = 30,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens per request.")] = 64,
    prompts: PromptsPath = None,
) -> None:
    chosen = prompts_by_task(prompts)[MIXED]
    with TemporaryDirectory(prefix="simulator-") as folder:
        levels = [float(rate) for rate in rates.split(",")]
        console.print(
            validate(
                lambda rate: load_plan(chosen, rate, seconds, max_tokens, 0), levels, Path(folder)
            )
        )


if __name__ == "__main__":
    run(app)
