"""What all commands have in common: their help, their console, prompts."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

MIXED = "mixed"


def application(text: str) -> typer.Typer:
    """A command with subcommands. text: its help, whose lines stay as they are."""
    # "\b" keeps typer from joining the lines of a paragraph, and with them the examples.
    lines = "\b\n" + text.replace("\n\n", "\n\n\b\n")
    return typer.Typer(help=lines, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def run(app: typer.Typer) -> None:
    """Do what the command line says. Exit status 2 and one line for what the caller can set right."""
    try:
        app()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def console_of(width: int) -> Console:
    """As wide as the terminal; of this width where the output goes elsewhere."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


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
