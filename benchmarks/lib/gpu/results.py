"""Lines of JSON in a file, and a line of text for each."""

import json
import time
from pathlib import Path

BEGAN = time.perf_counter()
SHOWN = (
    "cell", "level", "note", "tokens_per_s", "step_ms", "drafted", "verified", "tokens_per_row",
    "full", "piecewise", "with_prefill", "waiting", "ours_ms", "steps_to_change", "arm", "rate",
    "requests", "mean_s", "p99_s",
)  # fmt: skip


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f}]", *words, flush=True)


class Results:
    """Of a job. Every process of a run writes to the same file."""

    def __init__(self, folder: Path, job: str = ""):
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._job = folder / "gpu.jsonl", job

    def add(self, **figures) -> None:
        rounded = {name: _rounded(value) for name, value in figures.items()}
        with self._path.open("a") as file:
            file.write(json.dumps({"job": self._job} | rounded) + "\n")
        shown = {
            name: value
            for name, value in rounded.items()
            if not {"cell", "arm"} & set(figures) or name in SHOWN
        }
        say(self._job, *(f"{name}={value}" for name, value in shown.items()))

    def last(self, name: str):
        """The value of that name that was added last, by any job; None without one."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return next((line[name] for line in map(json.loads, reversed(lines)) if name in line), None)


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
