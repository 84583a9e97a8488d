"""What all commands have in common: their help, their console, prompts."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

MIXED = "mixed"


def application(text: str) -> typer.Typer:
    """A command with subcommands. text: its help, whose lines stay as they are."""
    # "\b" keeps typer from joining the lines of a paragraph, and with them the examples.
    lines = "\b\n" + text.replace("\n\n", "\n\n\b\n")
    return typer.Typer(
        help=lines, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )


def run(app: typer.Typer) -> None:
    """Do what the command line says. Exit status 2 and one line for what the caller can set
    right."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def console_of(width: int) -> Console:
    """As wide as the terminal; of this width where the output goes elsewhere."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def table_of(
    title: str, columns: Iterable[str], rows: Iterable[Sequence[object]], num_names: int = 1
) -> Table:
    """Columns of names, so many of them, and then of figures."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < num_names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def read_kept(path: Path | None, settings: dict | list, **empty: object) -> dict:
    """What a file holds of an earlier run, or a fresh start. ValueError if it was made with other
    settings."""
    if path is None or not path.exists():
        return {"settings": settings} | empty
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        made_with, is_complete = content["settings"], empty.keys() <= content.keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a result of this benchmark: give another one") from error
    if made_with != settings or not is_complete:
        raise ValueError(f"{path} was made with other settings ({made_with}): give another one")
    return content


def prompts_by_task(path: Path | None) -> dict[str, list[Prompt]]:
    """Prompts of each task (what stands before a slash in a row's `task`), and all there are as
    `mixed`.

    path: a JSONL file or a folder of them, None for the shipped prompts. Raises ValueError if it
    cannot be read.
    """
    prompts = shipped_prompts() if path is None else read_prompts(path)
    tasks = sorted({prompt.task.partition("/")[0] for prompt in prompts if prompt.task})
    return {task: [p for p in prompts if p.task.partition("/")[0] == task] for task in tasks} | {
        MIXED: prompts
    }


def check_task(name: str, tasks: dict[str, list[Prompt]]) -> None:
    """ValueError if there are no prompts of that task."""
    if name not in tasks:
        raise ValueError(f"unknown task {name!r}: these prompts have {', '.join(tasks)}")


SHIPPED_TASKS = ", ".join(prompts_by_task(None))
PromptsPath = Annotated[
    Path | None,
    typer.Option(
        help="JSONL file of prompts, or folder of such files (default: those of smartspec)."
    ),
]
