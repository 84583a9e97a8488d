"""Prompts from JSONL files: one JSON object a line with `prompt`, and optionally `id` and
`task`."""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """One user message."""

    prompt_id: str  # the row's `id`, else its line number
    task: str  # the row's `task`, else empty
    text: str


def shipped_prompts() -> list[Prompt]:
    """The package's own prompts, of eight tasks. They are for reporting: no constant is chosen on
    them."""
    with as_file(files("smartspec.workload") / "data" / "prompts.jsonl") as path:
        return read_prompts(path)


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file in file order, or of a folder's *.jsonl files in the order of their
    names.

    Raises ValueError naming the file and the line of a row that is not a JSON object with a
    non-empty string `prompt`. Raises it naming the file or folder that cannot be read, or has no
    prompt left.
    """
    paths = sorted(Path(path).glob("*.jsonl")) if Path(path).is_dir() else [Path(path)]
    prompts = [prompt for file in paths for prompt in _read_file(file)]
    if not prompts:
        raise ValueError(
            f'{path} holds no prompts: it needs one {{"prompt": "..."}} object a line, in .jsonl '
            "files"
        )
    return prompts


def _read_file(path: Path) -> list[Prompt]:
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the prompt file {path}: {error.strerror}") from error
    return [
        _parse_row(line, f"{path}, line {n}", n)
        for n, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _parse_row(line: bytes, where: str, line_number: int) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:  # malformed JSON and invalid UTF-8 alike
        raise ValueError(f"{where}: not a JSON object in UTF-8 ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(
            f'{where}: expected an object like {{"prompt": "..."}}, got {type(row).__name__}'
        )
    text = row.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: `prompt` must be a non-empty string, got {text!r}")
    return Prompt(str(row.get("id", line_number)), str(row.get("task", "")), text)


def draw_prompts(prompts: Sequence[Prompt], count: int, rng: np.random.Generator) -> list[Prompt]:
    """count prompts in random order; none comes a second time before all have come once."""
    order = rng.permutation(len(prompts))
    return [prompts[order[i % len(prompts)]] for i in range(count)]


def match_by_length(lengths: np.ndarray, wanted_lengths: np.ndarray) -> np.ndarray:
    """The text that goes to each place, int64 [N]: the longest to the place that wants the longest,
    and so on by rank.

    lengths and wanted_lengths are [N] in any units (characters and tokens, say): only their order
    counts.
    """
    chosen = np.empty(len(lengths), dtype=np.int64)
    chosen[np.argsort(wanted_lengths, kind="stable")] = np.argsort(lengths, kind="stable")
    return chosen
