"""What `models.py` found, as docs/results/models.json, and the page docs/models.md that groups it.

The file has every architecture and variant with its reason, and every GGUF file that was compared.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from textwrap import fill

UNTRIED = "not tried"
FILE = "results/models.json"  # beside the page
PAGE = """# Models

Every causal language model in transformers {transformers}, as a tiny model with random weights: it
is loaded as in a server and computes two texts in chunks, beside each other and with wrong drafts
rolled back, against transformers' own pass. [The file](results/models.json) has each
with its variants and reasons.

    python benchmarks/models.py architectures    # 5 minutes

| result | models | which |
| --- | --- | --- |
{architectures}

* **fused**: right, with modules of ours in place of some of its own; **right**: right, with its own
  modules. [Engine](engine.md#speed-on-a-cpu) says which of these run all their layers in one call.
  {variants}
* **refused**: loading says why; nothing is served.
* **not tried**: no tiny model of it runs in transformers itself. A real one is checked in the same
  way when it is loaded.

## GGUF files

Tiny files with unusual values of every key, against the logits of llama.cpp (xllamacpp
{xllamacpp}) on a text of {length} tokens. A key or tensor that is unknown or not computed is
refused by name, and so is any other architecture. `make test-files` checks the same, and every key
that the gguf package knows with {values} values each.

    python benchmarks/models.py gguf    # a minute

| architecture | files | largest difference |
| --- | --- | --- |
{files}

Differences are in units of the spread of the logits. gemma3, gpt2 and starcoder2 differ by the
table of half floats in which llama.cpp looks GELU up. Two keys are applied otherwise than in
llama.cpp. It leaves `phi3.attention.sliding_window` out. It takes LongRoPE's factors by the length
that its cache has room for, not by the length of the text.
"""
VARIANTS = (
    "Of their variants (bfloat16, sliding windows, LongRoPE, half of each head rotated), where one "
    "could be made, {right} of {number} are, too."
)


def write(page: Path, **found) -> None:
    """Add these parts to the file beside the page, and make the page of all that it has."""
    file = page.parent / FILE
    data = (json.loads(file.read_text()) if file.is_file() else {}) | found
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(data, indent=1) + "\n")
    page.write_text(page_of(data))


def page_of(data: dict) -> str:
    """data: of the file."""
    results = [
        result
        for row in data["architectures"].values()
        for variant, (result, _) in row.items()
        if variant != "plain" and result != UNTRIED
    ]
    right = sum(result in ("fused", "right") for result in results)
    said = VARIANTS.format(right=right, number=len(results))
    gguf = data["gguf"]
    files = [
        f"| {name} | {len(row['equal'])} | {row['difference']:.0e} |"
        for name, row in gguf["architectures"].items()
    ]
    return PAGE.format(
        transformers=data["transformers"],
        architectures="\n".join(_groups(data["architectures"])),
        variants=fill(said, 98, subsequent_indent="  "),
        files="\n".join(files),
        **{name: gguf[name] for name in ("xllamacpp", "length", "values")},
    )


def _groups(architectures: dict[str, dict[str, list[str]]]) -> list[str]:
    """A line for each result, and for each reason of a refusal; the largest first."""
    groups = defaultdict(list)
    for name, row in architectures.items():
        result, why = row["plain"]
        groups[f"{result}: {_general(why)}" if result == "refused" else result].append(name)
    ordered = sorted(groups.items(), key=lambda item: (_order(item[0]), -len(item[1])))
    return [f"| {result} | {len(names)} | {', '.join(names)} |" for result, names in ordered]


def _order(result: str) -> int:
    """What is served, what is wrong, what is refused, what is not known."""
    places = ("fused", "right", "refused", UNTRIED)
    kind = result.partition(":")[0]
    return 2 * places.index(kind) if kind in places else 3


def _general(why: str) -> str:
    """The reason without what is of one model alone."""
    why = re.sub(r"^it \([^)]*\)", "it", why.partition(": use ")[0])
    return re.sub(r"its \d+ layers call (.*) \d+ times", r"not each layer calls \1 once", why)
