"""The tested versions of vLLM, from tested_versions.json, and the range that is used. `make
test-vllm-matrix` runs the tests in each version that has a CPU build, and writes the file and the
tables of the pages (tests/vllm_real/record_versions.py)."""

import json
import re
from pathlib import Path

DATA = Path(__file__).with_suffix(".json")


def numbers(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version ("0.32.0+cpu"), None where it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def rows() -> list[dict[str, str]]:
    """Return the rows, newest first. vllm: a release. tested: its tests, in markdown, with {docs}
    for the pages."""
    return json.loads(DATA.read_text("utf-8"))


_RELEASES = [*filter(None, (numbers(row["vllm"]) for row in rows()))]
VERSIONS = min(_RELEASES), max(_RELEASES)  # the first and the last that are used
OLDEST, NEWEST = (".".join(map(str, each)) for each in VERSIONS)
