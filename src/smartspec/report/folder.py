"""The output folder: what the matrix is, and a line for each run that has been measured."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from smartspec.bench.report import write_json
from smartspec.report.matrix import Matrix, Run, differences
from smartspec.workload.records import RequestRecord, SpeculationCounters
from smartspec.workload.summary import Summary, summarize, summarize_speculation

# of a record, left out where it has none
OPTIONAL = dict.fromkeys(("ttft_seconds", "finish_reason", "error"))
MATRIX, RUNS, PAGE, SUMMARY = "matrix.json", "runs.jsonl", "index.html", "summary.json"


@dataclass(frozen=True)
class Measured:
    """A run and its records. Texts of records are digests: enough to tell whether two answers are
    the same."""

    key: tuple[str, str, int]  # Run.key
    started: str
    records: tuple[RequestRecord, ...]
    counters: SpeculationCounters | None = None
    failure: str | None = None  # why its figures do not count, None if they do
    commit: str | None = None

    @property
    def summary(self) -> Summary:
        nothing = SpeculationCounters(0, 0, 0, 0)
        speculation = (
            None if self.counters is None else summarize_speculation(nothing, self.counters)
        )
        return summarize(self.records, speculation=speculation)


def digested(record: RequestRecord) -> RequestRecord:
    """The record with a digest in place of its text."""
    return (
        replace(record, text=hashlib.sha256(record.text.encode()).hexdigest()[:12])
        if record.text
        else record
    )


Runs = Mapping[tuple[str, str, int], Measured]  # by key


def runs_of(runs: Runs, variant: str, cell: str) -> list[Measured]:
    """All repetitions of a cell with a variant, in order."""
    return [run for key, run in sorted(runs.items()) if key[:2] == (variant, cell)]


@dataclass(frozen=True)
class Folder:
    """The content of the folder, with the environment and the command of its first run."""

    path: Path
    environment: Mapping[str, str]
    command: str
    runs: list[Measured]
    commit: str | None = None  # of what measures further runs

    @staticmethod
    def open(path: Path, matrix: Matrix, environment: Mapping[str, str], command: str) -> "Folder":
        """A new folder for the matrix, or the one that holds a part of it. One without runs becomes
        this matrix's.

        Raises ValueError naming what differs if it holds another matrix, what is wrong with its
        files, or that it cannot be written.
        """
        # as it comes back: lists for tuples
        description = json.loads(json.dumps(matrix.description()))
        file, runs = path / MATRIX, path / RUNS
        try:
            # nothing that could be lost
            if not file.exists() or (runs.is_file() and runs.stat().st_size == 0):
                if not file.exists() and path.exists() and any(path.iterdir()):
                    raise ValueError(
                        f"{path} holds other files and no report: give another --output"
                    )
                path.mkdir(parents=True, exist_ok=True)
                write_json(
                    file,
                    {"matrix": description, "environment": dict(environment), "command": command},
                )
            kept = json.loads(file.read_text(encoding="utf-8"))
            with open(runs, "ab"):
                pass
        except OSError as error:
            raise ValueError(
                f"cannot write to {path} ({error.strerror}): give another --output"
            ) from error
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): delete the folder or give another --output"
            ) from error
        _check_same(path, kept, description, environment)
        return Folder(
            path, kept["environment"], kept["command"], read_runs(runs), environment.get("commit")
        )

    def add(self, measured: Measured) -> None:
        """Append a run, with the commit. Raises ValueError if it cannot be written; what was
        written before stays."""
        file, measured = self.path / RUNS, replace(measured, commit=self.commit)
        try:
            with open(file, "ab") as lines:
                lines.write(_line(measured))
                lines.flush()
                os.fsync(lines.fileno())
        except OSError as error:
            raise ValueError(
                f"cannot write to {file} ({error.strerror}): make room, then the same command goes "
                "on"
            ) from error
        self.runs.append(measured)

    def valid(self) -> dict[tuple[str, str, int], Measured]:
        """Runs whose figures count, by key."""
        return {run.key: run for run in self.runs if run.failure is None}

    def failed(self) -> dict[tuple[str, str, int], Measured]:
        """The last attempt of each run that has not been measured."""
        valid = self.valid()
        return {run.key: run for run in self.runs if run.key not in valid}

    def missing(self, runs: Sequence[Run]) -> list[Run]:
        """The runs of a round still to be done: those that failed; or all, if it has not been gone
        through, as runs that are compared belong to one time."""
        valid, tried = self.valid(), {run.key for run in self.runs}
        if all(run.key in tried for run in runs):
            return [run for run in runs if run.key not in valid]
        return list(runs)


def _check_same(path: Path, kept: dict, description: dict, environment: Mapping[str, str]) -> None:
    """ValueError if the folder is of another matrix or another machine."""
    remedy = "give another --output, or delete the folder"
    if not isinstance(kept, dict) or not {"matrix", "environment", "command"} <= set(kept):
        raise ValueError(f"{path / MATRIX} is not of a report: {remedy}")
    if differing := differences(kept["matrix"], description):
        raise ValueError(f"{path} holds another matrix ({'. '.join(differing)}): {remedy}")
    for name in ("cpu", "cores"):
        there, here = kept["environment"].get(name), environment.get(name)
        if there != here:
            raise ValueError(
                f"{path} is of another machine ({name} {there} there, {here} here): {remedy}"
            )


def _line(measured: Measured) -> bytes:
    variant, cell, repetition = measured.key
    row = {
        "variant": variant,
        "cell": cell,
        "repetition": repetition,
        "started": measured.started,
        "commit": measured.commit,
        "failure": measured.failure,
        "speculation": None if measured.counters is None else asdict(measured.counters),
        "requests": [_short(record) for record in measured.records],
    }
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _short(record: RequestRecord) -> dict:
    """Without what is None; seconds to the microsecond."""
    known = {name: value for name, value in asdict(record).items() if value is not None}
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in known.items()
    }


def read_runs(path: Path) -> list[Measured]:
    """The runs of a file. A last line that was cut off is removed from it; ValueError naming
    another bad line."""
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        os.truncate(path, sum(len(line) + 1 for line in lines))
    return [
        _read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)
    ]


def _read_line(line: bytes, where: str) -> Measured:
    try:
        row = json.loads(line)
        counters = row["speculation"]
        return Measured(
            (row["variant"], row["cell"], row["repetition"]),
            row["started"],
            tuple(RequestRecord(**(OPTIONAL | record)) for record in row["requests"]),
            None if counters is None else SpeculationCounters(**counters),
            row["failure"],
            row["commit"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where} is no run ({error}): delete the line, and the run is measured again"
        ) from error
