"""What does SmartSpec bring inside vLLM on GPUs? vLLM's real engine, with an emulated GPU.

    make test-vllm     # makes .venv-vllm
    python benchmarks/vllm_gpu.py policies --vllm-python .venv-vllm/bin/python

EngineCore, scheduler, KV manager, asynchronous scheduling and plugin are those of vLLM and
SmartSpec. Only the executor is ours: it computes nothing, takes the time of a roofline, and accepts
drafts by a stated rule.
"""

import json
import os
import subprocess
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from lib.commands import application, run
from lib.emulated_gpu.cells import ADAPTIVE, DYNAMIC_SD, Cell, Records
from lib.emulated_gpu.published import (
    MEASURED,
    emulated_milliseconds,
    measured_steps,
    published_steps,
)
from lib.emulated_gpu.report import details, latencies, markdown, speeds
from lib.emulated_gpu.setups import DRAFTERS, SETUPS, setup_of
from lib.emulated_gpu.tables import dynamic_sd_table

HERE = Path(__file__).parent
VllmPython = Annotated[
    str, typer.Option(help="Python of the environment that holds vLLM and smartspec.")
]
Folder = Annotated[
    Path, typer.Option(help="Records, and what was learned. Cells that are there are kept.")
]
POLICIES = (
    "off,fixed:0,fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,dynamic-sd,adaptive-verification,goodput"
)
LOADS = "closed:1,closed:4,closed:8,closed:32,closed:128,closed:256"
H100_TOLERANCE, CPU_TOLERANCE = 0.15, 0.05
app = application(__doc__)


@app.command()
def policies(
    vllm_python: VllmPython,
    setups: Annotated[
        str, typer.Option(help=f"Of {', '.join(SETUPS)}, or JSON files of the plugin's cache.")
    ] = "8b-h100",
    drafters: Annotated[str, typer.Option(help=f"Of {', '.join(DRAFTERS)}.")] = "eagle3,ngram",
    loads: Annotated[
        str, typer.Option(help="closed:N at a time, poisson:RATE, trace:FILE@SPEED@REQUESTS.")
    ] = LOADS,
    policies: Annotated[
        str, typer.Option(help="dynamic-sd needs fixed:K in closed loops.")
    ] = POLICIES,
    scheduling: Annotated[str, typer.Option(help="async, sync.")] = "async",
    longest: Annotated[int, typer.Option(min=1, help="Longest draft.")] = 5,
    acceptance: Annotated[
        str | None,
        typer.Option(help="As `smartspec simulate`, or texts:FILE of `vllm_plugin.py lengths`."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Mean.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=2, help="Mean.")] = 200,
    folder: Folder = Path("build/vllm-gpu"),
) -> None:
    """Tokens per second, latency, and idle time of the GPU, by policy and load; the worst cell
    first."""
    folder.mkdir(parents=True, exist_ok=True)
    names = policies.split(",")
    scenes = product(
        map(_setup, setups.split(",")),
        drafters.split(","),
        [_absolute(load, "trace:") for load in loads.split(",")],
        [how == "async" for how in scheduling.split(",")],
    )
    sizes = {"longest": longest, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    cells = [
        Cell(setup, drafter, load, policy, is_async, **_acceptance(drafter, acceptance), **sizes)
        for setup, drafter, load, is_async in scenes
        for policy in names
        # vLLM has it for drafters with confidence alone
        if policy != ADAPTIVE or DRAFTERS[drafter].has_passes
    ]
    _measure(vllm_python, folder, [cell for cell in cells if cell.is_fixed])
    _measure(vllm_python, folder, [cell for cell in cells if not cell.is_fixed])
    found = Records(folder / "records.jsonl").found
    _print({cell: found[cell] for cell in cells}, names)


@app.command()
def check(
    vllm_python: Annotated[
        str | None, typer.Option(help="Check the CPU build, too, with this Python.")
    ] = None,
    model_path: Annotated[
        str | None, typer.Option(help="Folder of the model that the CPU build computes.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time on the CPU.")] = 4,
    folder: Folder = Path("build/vllm-gpu"),
) -> None:
    """Is the emulation right? Against steps of real H100s, and against vLLM's CPU build on this
    machine.

    H100s: milliseconds of steps measured with vLLM 0.33, and published for older software, and of
    the same steps on the emulated GPU. CPU: prompts are computed, then emulated with the times of
    the steps by size and with the texts that came of them. The exit status is 1 if a measured step
    is off by more than 15 %, or a speed on the CPU by more than 5 %.
    """
    steps = [
        (step, emulated_milliseconds(step) / step.milliseconds - 1)
        for step in (*measured_steps(), *published_steps())
    ]
    steps.sort(key=lambda pair: -abs(pair[1]))
    rows = [
        [
            s.setup,
            s.source,
            s.requests,
            s.tokens_per_request,
            s.context,
            f"{s.milliseconds:.2f}",
            f"{100 * error:+.1f} %",
        ]
        for s, error in steps
    ]
    columns = ("GPU", "source", "requests", "tokens each", "context", "real ms", "emulated")
    print(markdown(columns, rows))
    is_right = all(abs(error) <= H100_TOLERANCE for step, error in steps if step.source == MEASURED)
    if vllm_python is not None:
        if model_path is None:
            raise ValueError(
                "--vllm-python without --model-path: name the model that the CPU build computes"
            )
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / "cpu_check.json"
        _call(
            vllm_python,
            "cpu_check",
            str(Path(model_path).absolute()),
            str(result.absolute()),
            str(concurrency),
        )
        speeds = json.loads(result.read_text())
        errors = {
            policy: emulated / computed - 1 for policy, (computed, emulated) in speeds.items()
        }
        rows = [
            [p, f"{c:.1f}", f"{e:.1f}", f"{100 * errors[p]:+.1f} %"] for p, (c, e) in speeds.items()
        ]
        print(
            "\n"
            + markdown(("policy on the CPU", "computed tokens/s", "emulated", "difference"), rows)
        )
        is_right &= all(abs(error) <= CPU_TOLERANCE for error in errors.values())
    if not is_right:
        raise typer.Exit(1)


def _absolute(value: str, prefix: str = "") -> str:
    """The path after a prefix, for a program that runs in another folder; other values as they
    are."""
    return (
        f"{prefix}{Path(value.removeprefix(prefix)).absolute()}"
        if value.startswith(prefix)
        else value
    )


def _acceptance(drafter: str, acceptance: str | None) -> dict:
    if drafter not in DRAFTERS:
        raise ValueError(f"unknown drafter {drafter!r}: use one of {', '.join(DRAFTERS)}")
    known = DRAFTERS[drafter]
    stated = known.acceptance if acceptance is None else _absolute(acceptance, "texts:")
    return {"acceptance": stated, "found_share": known.found_share}


def _setup(name: str) -> str:
    """ValueError if there is none of that name."""
    name = _absolute(name) if name.endswith(".json") else name
    setup_of(name)
    return name


@app.command()
def tables(folder: Folder = Path("build/vllm-gpu")) -> None:
    """The tables of all cells that a folder holds."""
    found = Records(folder / "records.jsonl").found
    if not found:
        raise ValueError(
            f"{folder} holds no records: run `vllm_gpu.py policies` first, or give its --folder"
        )
    _print(found, list(dict.fromkeys(cell.policy for cell in found)))


def _print(found: dict[Cell, dict], policies: list[str]) -> None:
    for text in filter(None, (speeds(found, policies), latencies(found, policies), details(found))):
        print(f"\n{text}")


def _measure(vllm_python: str, folder: Path, cells: list[Cell]) -> None:
    """The cells that the folder does not hold, in one process of vLLM's environment."""
    records = Records(folder / "records.jsonl")
    todo = records.missing(cells)
    if not todo:
        return
    jobs = [
        {
            "cell": asdict(cell),
            "table": dynamic_sd_table(cell, records.found) if cell.policy == DYNAMIC_SD else None,
        }
        for cell in todo
    ]
    job = folder / "job.json"
    job.write_text(json.dumps({"records": str(folder.absolute() / "records.jsonl"), "jobs": jobs}))
    _call(vllm_python, "worker", str(job.absolute()))


def _call(vllm_python: str, program: str, *arguments: str) -> None:
    """A program of lib/emulated_gpu in vLLM's environment. Paths are relative to the folder of the
    caller."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    command = [vllm_python, "-m", f"lib.emulated_gpu.{program}", *arguments]
    if subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}).returncode:
        raise ValueError(f"{program} failed with {vllm_python}: see above")


if __name__ == "__main__":
    run(app)
