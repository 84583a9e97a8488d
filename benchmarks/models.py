"""Which models and files are served rightly? The first two commands write their part of
docs/results/models.json, and docs/models.md of it.

    python benchmarks/models.py architectures --only llama,phi3 --output models.md
    python benchmarks/models.py gguf
    python benchmarks/models.py perplexity --model FILE.gguf --prompts FOLDER

gguf needs `make test-files`' llama.cpp.
"""

from pathlib import Path
from typing import Annotated

import typer
from lib.commands import application, run

from smartspec.engine.models.default_model import DEFAULT_MODEL

Output = Annotated[Path, typer.Option(help="The page that is written.")]
app = application(__doc__)


@app.command()
def architectures(
    only: Annotated[
        str | None, typer.Option(help="Architectures separated by commas; left out: all.")
    ] = None,
    output: Output = Path("docs/models.md"),
) -> None:
    """Every causal language model of the installed transformers, tiny, against transformers' own
    pass.

    A tiny model with random weights is loaded as in a server. It computes two texts at the same
    time, in chunks and with wrong drafts rolled back. The reference is transformers with eager
    attention. What is right is tried again in variants: bfloat16, layers with and without sliding
    windows, LongRoPE, half of each head rotated. Takes about five minutes.
    """
    from lib.architectures import check

    check(only.split(",") if only else [], output)


@app.command()
def gguf(output: Output = Path("docs/models.md")) -> None:
    """Every key of GGUF files that is applied, against llama.cpp.

    Writes tiny files with unusual values. This engine and llama.cpp both load them and compute the
    logits of a text. Takes a minute.
    """
    from lib.gguf_files import check

    check(output)


@app.command()
def perplexity(
    model: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = DEFAULT_MODEL,
    quantization: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSONL file, or a folder of them (default: the package's own)."),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each file.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of a prompt.")] = 256,
) -> None:
    """What rounding activations to 8 bits does to a model: the perplexity of prompts, against
    activations in fp32.

    The standard error is of the growth, over tokens. The last column is what growth would be on
    text drawn from the model itself. Loading compares that figure, of a short text, with 0.5 %.
    """
    from lib.perplexity import compare

    compare(model, quantization, prompts, num_prompts, max_tokens)


if __name__ == "__main__":
    run(app)
