"""The prompts that benchmarks send, by task: those that come with smartspec, or larger sets given by path."""

from pathlib import Path
from typing import Annotated

import typer

from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

MIXED = "mixed"


def prompts_by_task(path: Path | None) -> dict[str, list[Prompt]]:
    """Prompts of each task (what stands before a slash in a row's `task`), and all there are as `mixed`.

    path: a JSONL file or a folder of them, None for the shipped prompts. Raises ValueError if it cannot be read.
    """
    prompts = shipped_prompts() if path is None else read_prompts(path)
    tasks = sorted({prompt.task.partition("/")[0] for prompt in prompts if prompt.task})
    return {task: [p for p in prompts if p.task.partition("/")[0] == task] for task in tasks} | {MIXED: prompts}


def check_task(name: str, tasks: dict[str, list[Prompt]]) -> None:
    """ValueError if there are no prompts of that task."""
    if name not in tasks:
        raise ValueError(f"unknown task {name!r}: these prompts have {', '.join(tasks)}")


SHIPPED_TASKS = ", ".join(prompts_by_task(None))
PromptsPath = Annotated[
    Path | None, typer.Option(help="JSONL file of prompts, or folder of such files (default: those of smartspec).")
]
