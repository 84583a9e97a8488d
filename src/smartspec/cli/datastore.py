"""`smartspec datastore`: n-grams of texts, from which requests are drafted."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from smartspec.cli.options import command

if TYPE_CHECKING:
    from smartspec.drafters.datastore import DatastoreHeader


@dataclass(frozen=True, kw_only=True)
class Building:
    """The texts to count, their model, and the place of the datastore."""

    files: Annotated[
        list[Path],
        Argument(
            help='Texts: shards of training rows (.npz), JSONL with "answer" (and "prompt") or "text", all else as '  # noqa: E501
            "plain text; or folders of .npz, .jsonl and .txt."
        ),
    ]
    model: Annotated[
        str, Option(help="Whose tokens are counted: Hugging Face id, folder or GGUF file.")
    ]
    out: Annotated[Path, Option(help="New folder for the datastore.")]


@command(Building)
def build(options: Building) -> None:
    """Count n-grams of texts and write a datastore for `--datastore` of `serve` and `generate`.

    Best are answers of the model itself, or texts that its answers repeat. Without an end the
    folder is not there.
    """
    from smartspec.texts.datastore import build_datastore

    # in the background a shell has the first one ignored
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        header = build_datastore(options.model, options.files, options.out, _progress)
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        raise Exit(130) from None
    _print(options.out, header)


def info(folder: Annotated[Path, Argument(help="Folder of a datastore.")]) -> None:
    """Show what a datastore was made of, and whether it is whole."""
    from smartspec.drafters.datastore import Datastore

    _print(folder, Datastore(folder).header)


def _progress(paths: list[Path]) -> Iterator[Path]:
    from rich.console import Console
    from rich.progress import track

    yield from track(paths, description="files", console=Console(stderr=True))


def _print(folder: Path, header: "DatastoreHeader") -> None:
    num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    print(f"{folder}: {num_bytes / 1e6:.1f} MB, for the tokenizer of {header.model}")
    print(
        f"  made of {header.num_tokens:,} tokens of {header.num_texts:,} texts: "
        f"{', '.join(header.sources)}"
    )
    counted = f"each seen {header.least_count} times or more"
    print(f"  {header.num_contexts:,} contexts with {header.num_pairs:,} next tokens, {counted}")
