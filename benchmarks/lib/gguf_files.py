"""Which keys of GGUF files are applied: a table against llama.cpp, by
tests/engine/gguf_comparison.py."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lib.models_page import GGUF_HEADING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "engine"))
from gguf_architectures import SPECS, write_gguf
from gguf_comparison import TEXT, cases, compare, our_logits
from llama_cpp import LlamaCpp
from test_gguf_llama_cpp import VALUES

SECTION = """{heading}

Made by `python benchmarks/models.py gguf` with xllamacpp {version}: tiny files with random weights and unusual
values of every key, and the logits of a text of {length} tokens, here and in llama.cpp.

* **difference**: the largest of all logits and files of the row, in units of the spread of the logits. gemma3, gpt2 and
  starcoder2 differ by the table of half floats in which llama.cpp looks GELU up
* **refused**: loading names this key or tensor. Keys that are unknown here are refused, too, and files of all other
  architectures

`make test-files` checks the same, and every key that the gguf package knows with {values} values each.

| architecture | equal | difference | refused |
| --- | --- | --- | --- |
{rows}

Two keys are applied otherwise than in llama.cpp. It leaves `phi3.attention.sliding_window` out. It takes LongRoPE's
factors by the length that its cache has room for, not by the length of the text.
"""  # noqa: E501


def check(output: Path) -> None:
    """Compare what GGUF files say with llama.cpp, and write the table under its heading of the
    page."""
    peer = LlamaCpp()
    rows = []
    for name in sorted(SPECS):
        rows.append(row_of(name, peer))
        print(rows[-1], flush=True)
    peer.close()
    section = SECTION.format(
        heading=GGUF_HEADING,
        version=version("xllamacpp"),
        length=len(TEXT),
        values=len(VALUES),
        rows="\n".join(rows),
    )
    page = output.read_text() if output.is_file() else ""
    output.write_text(page.partition(GGUF_HEADING)[0].rstrip("\n") + "\n\n" + section)


def row_of(architecture: str, peer) -> str:
    with tempfile.TemporaryDirectory() as folder:
        usual = our_logits(write_gguf(Path(folder) / "usual.gguf", SPECS[architecture]()))
        found = {
            name: compare(peer, spec, Path(folder), usual)
            for name, spec in cases(architecture).items()
        }
    equal = [name for name, result in found.items() if result.error is not None]
    refused = sorted(
        {
            result.refusal.removeprefix(f"{architecture}.")
            for result in found.values()
            if result.refusal
        }
    )
    worst = max(result.error for result in found.values() if result.error is not None)
    named = ", ".join(f"`{name}`" for name in refused)
    return f"| {architecture} | {'; '.join(equal)} | {worst:.0e} | {named} |"
