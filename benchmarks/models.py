"""Which models and files are served rightly? Both commands write their part of docs/models.md.

    python benchmarks/models.py architectures --only llama,phi3 --output models.md
    python benchmarks/models.py gguf

gguf needs `make test-files`' llama.cpp.
"""

from pathlib import Path
from typing import Annotated

import typer
from lib.commands import application, run

Output = Annotated[Path, typer.Option(help="The page that is written.")]
app = application(__doc__)


@app.command()
def architectures(
    only: Annotated[str | None, typer.Option(help="Architectures separated by commas; left out: all.")] = None,
    output: Output = Path("docs/models.md"),
) -> None:
    """Every causal language model of the installed transformers, tiny, against transformers' own pass.

    A tiny model with random weights is loaded as in a server. It computes two texts at the same time, in chunks and
    with wrong drafts rolled back. The reference is transformers with eager attention. What is right is tried again in
    variants: bfloat16, layers with and without sliding windows, LongRoPE, half of each head rotated. Takes about five
    minutes.
    """
    from lib.architectures import check

    check(only.split(",") if only else [], output)


@app.command()
def gguf(output: Output = Path("docs/models.md")) -> None:
    """Every key of GGUF files that is applied, against llama.cpp.

    Writes tiny files with unusual values. This engine and llama.cpp both load them and compute the logits of a text.
    The table of both goes under its heading of the page. Takes a minute.
    """
    from lib.gguf_files import check

    check(output)


if __name__ == "__main__":
    run(app)
