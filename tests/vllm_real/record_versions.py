"""Writes the outcome of a run into tested_versions.json, and its table into the pages of a clone:
`python tests/vllm_real/record_versions.py CLONE`."""

import json
import re
import sys
from pathlib import Path

from smartspec.vllm_plugin.tested_versions import DATA, numbers, rows

PAGES = {"README.md": "docs/", "docs/vllm.md": ""}  # and where the other pages are, seen from there
TABLE = re.compile(r"^\| vLLM \| tested \|\n(?:\|.*\n)+", re.MULTILINE)


def record(version: str, tested: str, path: Path = DATA) -> None:
    """Put a row in the place of the one of the same release."""
    release = ".".join(map(str, numbers(version) or (version,)))
    versions = [row for row in rows() if row["vllm"] != release] + [
        {"vllm": release, "tested": tested}
    ]
    versions.sort(key=lambda row: numbers(row["vllm"]) or (0, 0), reverse=True)
    lines = ",\n ".join(json.dumps(row) for row in versions)
    path.write_text(f"[\n {lines}\n]\n", "utf-8")


def table(docs: str) -> str:
    """Return the table in markdown. docs: the folder of pages, seen from the page that has the
    table."""
    lines = [f"| {row['vllm']} | {row['tested'].replace('{docs}', docs)} |" for row in rows()]
    return "\n".join(["| vLLM | tested |", "| --- | --- |", *lines, ""])


def main(clone: Path) -> int:
    """Write the table into the pages. Exit status: 0, 2 where a page has none."""
    for name, docs in PAGES.items():
        page = clone / name
        text = page.read_text("utf-8")
        if not TABLE.search(text):
            print(f"error: {page} has no table of tested versions", file=sys.stderr)
            return 2
        page.write_text(TABLE.sub(lambda _, docs=docs: table(docs), text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
