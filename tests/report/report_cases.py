"""Small matrices and made-up runs."""

from smartspec.report.folder import Measured
from smartspec.report.matrix import Cell, Load, Matrix, Variant
from smartspec.workload.records import RequestRecord, SpeculationCounters

VARIANTS = (
    Variant("off", "off", "none"),
    Variant("fixed:3", "fixed:3"),
    Variant("goodput", "goodput"),
)
CHAT, CODE = (Cell(name, Load(concurrency=2)) for name in ("chat", "code"))


def matrix(cells=(CHAT, CODE), variants=VARIANTS, **options) -> Matrix:
    return Matrix(tuple(variants), tuple(cells), **options)


def record(number: int, seconds: float, text: str = "abc", **fields) -> RequestRecord:
    options = {
        "ttft_seconds": 0.1,
        "num_prompt_tokens": 5,
        "num_output_tokens": 10,
        "has_usage": True,
    }
    options |= {
        "finish_reason": "stop",
        "error": None,
        "text": text,
        "task": "chat",
        "start_seconds": 0.0,
    }
    return RequestRecord(prompt_id=f"p {number}", end_to_end_seconds=seconds, **(options | fields))


def measured(variant: str, cell: Cell, repetition: int, seconds: list[float], **fields) -> Measured:
    records = tuple(record(number, value) for number, value in enumerate(seconds))
    counters = SpeculationCounters(40, 20, 10, 10)
    options = {"started": "2026-01-01T00:00:00+00:00", "records": records, "counters": counters}
    return Measured((variant, cell.name, repetition), **(options | fields))
