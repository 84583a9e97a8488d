"""What does SmartSpec bring inside vLLM on GPUs? vLLM's real engine, with an emulated GPU.

    make test-vllm     # makes .venv-vllm
    python benchmarks/vllm_gpu.py policies --vllm-python .venv-vllm/bin/python

EngineCore, scheduler, KV manager, asynchronous scheduling and plugin are those of vLLM and SmartSpec. Only the executor
is ours: it computes nothing, takes the time of a roofline, and accepts drafts by a stated rule.
"""

import json
import subprocess
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from lib.commands import application, run
from lib.emulated_gpu.cells import DYNAMIC_SD, Cell, Records
from lib.emulated_gpu.report import details, speeds
from lib.emulated_gpu.tables import dynamic_sd_table

HERE = Path(__file__).parent
VllmPython = Annotated[str, typer.Option(help="Python of the environment that holds vLLM and smartspec.")]
Folder = Annotated[Path, typer.Option(help="Records, and what was learned. Cells that are there are kept.")]
POLICIES = "off,fixed:0,fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,dynamic-sd,adaptive-verification,goodput"
app = application(__doc__)


@app.command()
def policies(
    vllm_python: VllmPython,
    setups: Annotated[str, typer.Option(help="8b-h100, 70b-4xh100, 70b-8xh100; separated by commas.")] = "8b-h100",
    drafters: Annotated[str, typer.Option(help="eagle3, mtp, dflash, draft_model, ngram.")] = "eagle3",
    loads: Annotated[str, typer.Option(help="closed:N, N requests at a time.")] = "closed:32,closed:256",
    policies: Annotated[str, typer.Option(help="dynamic-sd needs fixed:K in closed loops.")] = POLICIES,
    scheduling: Annotated[str, typer.Option(help="async, sync.")] = "async",
    longest: Annotated[int, typer.Option(min=1, help="Longest draft.")] = 5,
    folder: Folder = Path("build/vllm-gpu"),
) -> None:
    """Tokens per second, latency, and idle time of the GPU, by policy and load; the worst cell first."""
    folder.mkdir(parents=True, exist_ok=True)
    names = policies.split(",")
    scenes = list(product(setups.split(","), drafters.split(","), loads.split(","), scheduling.split(",")))
    cells = [
        Cell(setup, drafter, load, policy, is_async=how == "async", longest=longest)
        for setup, drafter, load, how in scenes
        for policy in names
    ]
    _measure(vllm_python, folder, [cell for cell in cells if cell.is_fixed])
    _measure(vllm_python, folder, [cell for cell in cells if not cell.is_fixed])
    found = Records(folder / "records.jsonl").found
    _print({cell: found[cell] for cell in cells}, names)


@app.command()
def tables(folder: Folder = Path("build/vllm-gpu")) -> None:
    """The tables of all cells that a folder holds."""
    found = Records(folder / "records.jsonl").found
    if not found:
        raise ValueError(f"{folder} holds no records: run `vllm_gpu.py policies` first, or give its --folder")
    _print(found, list(dict.fromkeys(cell.policy for cell in found)))


def _print(found: dict[Cell, dict], policies: list[str]) -> None:
    for text in (speeds(found, policies), details(found)):
        print(f"\n{text}")


def _measure(vllm_python: str, folder: Path, cells: list[Cell]) -> None:
    """The cells that the folder does not hold, in one process of vLLM's environment."""
    records = Records(folder / "records.jsonl")
    todo = records.missing(cells)
    if not todo:
        return
    jobs = [
        {"cell": asdict(cell), "table": dynamic_sd_table(cell, records.found) if cell.policy == DYNAMIC_SD else None}
        for cell in todo
    ]
    job = folder / "job.json"
    job.write_text(json.dumps({"records": str(folder.absolute() / "records.jsonl"), "jobs": jobs}))
    command = [vllm_python, "-m", "lib.emulated_gpu.worker", str(job.absolute())]
    if subprocess.run(command, cwd=HERE).returncode:
        raise ValueError(f"the measurement failed; what was measured is kept in {folder}")


if __name__ == "__main__":
    run(app)
