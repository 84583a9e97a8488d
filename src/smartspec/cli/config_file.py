"""Options of a server from a TOML file. What the command line or a variable says goes before what
the file says."""

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from smartspec.server.openai.workload_classes import WorkloadClasses

CLASSES = "classes"  # the one table: [classes.NAME], see server.workload_classes


def use_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of an eager option: makes what the file says the defaults of the others. ValueError
    on unknown names."""
    if path is not None:
        options = {parameter.name for parameter in context.command.params} - {"config", "help"}
        given = {
            name.replace("-", "_"): value for name, value in _read(path).items() if name != CLASSES
        }
        for name, value in given.items():
            if name not in options:
                raise ValueError(f"{path}: {_unknown(name, options)}")
            if isinstance(value, list | dict):
                raise ValueError(f"{path}: {name} must be one value, got {value!r}")
        # As text, as from a variable: what 8.5 or true mean for a number is then refused, not
        # rounded.
        context.default_map = {name: str(value) for name, value in given.items()}
    return path


def read_classes(path: Path | None) -> "WorkloadClasses":
    """The workload classes of the file. Raises ValueError naming the class and what is wrong with
    it."""
    from smartspec.server.openai.workload_classes import WorkloadClasses

    try:
        return WorkloadClasses({} if path is None else _read(path).get(CLASSES, {}))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from error


def _unknown(name: str, options: set[str]) -> str:
    close = difflib.get_close_matches(name, options, n=1)
    remedy = (
        f"did you mean {close[0]}?"
        if close
        else f"there are {', '.join(sorted(options))} and [{CLASSES}.NAME]"
    )
    return f"there is no option {name}: {remedy}"
