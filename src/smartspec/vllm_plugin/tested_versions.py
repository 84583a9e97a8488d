"""The tested versions of vLLM, from tested_versions.json: the range that is used, and the table of
the pages.

`make test-vllm-matrix` runs the tests in each version that has a CPU build, records the outcome,
and writes the tables: `python -m smartspec.vllm_plugin.tested_versions FOLDER` does the last for a
clone in FOLDER.
"""

import json
import re
import sys
from pathlib import Path

DATA = Path(__file__).with_suffix(".json")
PAGES = {"README.md": "docs/", "docs/vllm.md": ""}  # and where the other pages are, seen from there
TABLE = re.compile(r"^\| vLLM \| tested \|\n(?:\|.*\n)+", re.MULTILINE)


def numbers(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version ("0.32.0+cpu"), None where it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def rows() -> list[dict[str, str]]:
    """Return the rows, newest first. vllm: a release. tested: its tests, in markdown, with {docs}
    for the pages."""
    return json.loads(DATA.read_text("utf-8"))


def record(version: str, tested: str) -> None:
    """Put a row in the place of the one of the same release."""
    release = ".".join(map(str, numbers(version) or (version,)))
    versions = [row for row in rows() if row["vllm"] != release] + [
        {"vllm": release, "tested": tested}
    ]
    versions.sort(key=lambda row: numbers(row["vllm"]) or (0, 0), reverse=True)
    lines = ",\n ".join(json.dumps(row) for row in versions)
    DATA.write_text(f"[\n {lines}\n]\n", "utf-8")


def table(docs: str) -> str:
    """Return the table in markdown. docs: the folder of pages, seen from the page that has the
    table."""
    lines = [f"| {row['vllm']} | {row['tested'].replace('{docs}', docs)} |" for row in rows()]
    return "\n".join(["| vLLM | tested |", "| --- | --- |", *lines, ""])


def main(arguments: list[str]) -> int:
    """Write the table into the pages of a clone. Exit status: 0, 2 where a page has none."""
    for name, docs in PAGES.items():
        page = Path(*arguments, name)
        text = page.read_text("utf-8")
        if not TABLE.search(text):
            print(f"error: {page} has no table of tested versions", file=sys.stderr)
            return 2
        page.write_text(TABLE.sub(lambda _, docs=docs: table(docs), text), "utf-8")
    return 0


def _bounds() -> tuple[tuple[int, int], tuple[int, int]]:
    releases = [release for row in rows() if (release := numbers(row["vllm"]))]
    return min(releases), max(releases)


VERSIONS = _bounds()  # the first and the last release that are used

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
