"""The page docs/models.md, from what `models.py` found."""

from collections import Counter
from pathlib import Path

UNTRIED = "not tried"
# What follows it on the page is of `models.py gguf`.
GGUF_HEADING = "## GGUF files"
PAGE = """# Models

Made by `python benchmarks/models.py architectures` with transformers {version}: a tiny model with random weights of
every causal language model there is in it, loaded as a server would and computing two texts in chunks, beside each
other and with wrong drafts rolled back, against transformers' own pass under eager attention.

{summary}

* **fused**: right, with modules of ours in place of some of its own; **right**: right, with its own modules
* [Engine](engine.md#speed-on-a-cpu) says which of these run all their layers in one call
* **refused**: loading says why, as in the last column; nothing is served
* **not tried**: the command's settings make no tiny model that transformers itself runs, for the reason in the last
  column. So nothing is known of it here; a real one is checked in the same way when it is loaded
* **WRONG**, **LOADCRASH**, **RUNCRASH**: other logits than transformers', or an exception that is no refusal

*bfloat16*: compared by the median token, as rounding alone sends single tokens to other experts; *window*: layers with
and without a sliding window; *LongRoPE*: rotary factors that depend on the longest text of a pass, so the model is
served up to where they would switch; *partial*: half of each head rotated. A dash: no such variant could be made.

| architecture | plain | {variants} | why |
| --- | --- |{rule}
{rows}
"""  # noqa: E501


def write_table(
    output: Path,
    rows: dict[str, dict[str, tuple[str, str]]],
    variants: tuple[str, ...],
    version: str,
) -> None:
    """rows: of every architecture and variant ("" is the plain one) the result and its detail."""
    counts = Counter(row[""][0] for row in rows.values())
    of_variants = Counter(
        row[v][0] for row in rows.values() for v in variants if v in row and row[v][0] != UNTRIED
    )
    summary = (
        f"{len(rows)} architectures: {_listed(counts)}. Their variants: {_listed(of_variants)}."
    )
    page = PAGE.format(
        version=version,
        summary=_wrapped(summary),
        variants=" | ".join(variants),
        rule=" --- |" * (len(variants) + 1),
        rows="\n".join(_row(name, row, variants) for name, row in sorted(rows.items())),
    )
    before = output.read_text() if output.is_file() else ""
    output.write_text(page + "".join(before.partition(f"\n{GGUF_HEADING}")[1:]))


def _listed(counts: Counter) -> str:
    return ", ".join(f"{number} {result}" for result, number in counts.most_common())


def _row(name: str, row: dict[str, tuple[str, str]], variants: tuple[str, ...]) -> str:
    cells = [name, row[""][0]]
    cells += ["-" if row.get(v, (UNTRIED,))[0] == UNTRIED else row[v][0] for v in variants]
    details = {
        v: row[v][1]
        for v in ("", *variants)
        if v in row and row[v][1] and (not v or row[v][0] != UNTRIED)
    }
    why = "; ".join(f"{v}: {text}" if v else text for v, text in details.items())
    return "| " + " | ".join([*cells, _short(why)]) + " |"


def _short(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "/")
    return flat if len(flat) <= 160 else flat[:157] + "..."


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= 120:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
