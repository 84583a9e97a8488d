"""`python -m lab.train`: a trained head for a model, from data to checkpoint."""

import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from smartspec.cli.main import run
from smartspec.cli.options import command

app = typer.Typer(pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, on what, and where it goes."""

    model: Annotated[
        str,
        typer.Argument(
            help="The target: Hugging Face id, folder or GGUF file, or its default name."
        ),
    ]
    data: Annotated[
        Path, typer.Option(help="Folder of training texts; more are appended by --generate.")
    ]
    generate: Annotated[
        int | None,
        typer.Option(
            min=1, help="Have the target write texts until there are so many answer tokens."
        ),
    ] = None
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL files, or folders of them, of prompts to answer first (with --generate); "
            "the target writes all others."
        ),
    ] = None
    from_log: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder of a server's --datastore-memory: the answers in it are appended to the "
                "texts."
            )
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Train a head on the texts and write it to this folder.")
    ] = None
    acceptance: Annotated[
        Path | None,
        typer.Option(
            help="Train what says how likely drafts of the EAGLE-3 head in this folder are "
            "accepted (SpecDec++), on up to --tokens of the texts, and write it there if it tells "
            "more than the head."
        ),
    ] = None
    export_data: Annotated[
        Path | None,
        typer.Option(
            help="Write the texts as `speculators train` reads them to this folder (for a GPU)."
        ),
    ] = None
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of head: eagle3, p-eagle (drafts in one pass), medusa (the same, without "
            "attention) or redrafter (recurrent)."
        ),
    ] = "eagle3"
    from_head: Annotated[
        Path | None,
        typer.Option(help="EAGLE-3 head that --out goes on from; its vocabulary stays."),
    ] = None
    tokens: Annotated[
        int, typer.Option(min=1, help="Answer tokens to train on, repeated ones included.")
    ] = 1_000_000
    vocabulary: Annotated[int, typer.Option(min=1, help="Tokens the head can draft.")] = 8192
    learning_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Peak learning rate.")] = (
        1e-2
    )
    seed: Annotated[int, typer.Option(help="Seed of what is sampled.")] = 0
    forecast: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Say what more training would bring, by the learning curve of the head in this "
                "folder."
            )
        ),
    ] = None
    costs: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Decision log of a server that runs a head: for tokens per second (with "
                "--forecast)."
            )
        ),
    ] = None


@app.command()
@command(Training)
def train_drafter(options: Training) -> None:
    """Train a head to draft, on the target's own text.

    Example: python -m lab.train smollm2-135m-instruct --data texts --generate 1000000
    """
    if options.costs is not None and options.forecast is None:
        raise ValueError("--costs are for --forecast FOLDER: give that too, or leave them out")
    if options.forecast is not None:
        from lab.train.forecast_table import print_forecast

        print_forecast(options.forecast, options.costs)
        return
    _check_stages(options)
    report = partial(print, file=sys.stderr, flush=True)
    # in the background a shell has the first one ignored
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        if options.generate is not None:
            from lab.train.run import generate_texts

            generate_texts(
                options.model,
                options.data,
                options.generate,
                tuple(options.prompts or ()),
                options.seed,
                report,
            )
        if options.from_log is not None:
            from lab.train.from_log import take_answers

            take_answers(options.model, options.from_log, options.data, report)
        if options.export_data is not None:
            from lab.train.run import export_data

            export_data(options.model, options.data, options.export_data, report)
        if options.out is not None:
            from lab.train.fit import TrainingSettings
            from lab.train.run import train_head

            settings = TrainingSettings(
                kind=options.kind,
                num_tokens=options.tokens,
                draft_vocab_size=options.vocabulary,
                learning_rate=options.learning_rate,
                seed=options.seed,
                from_head=None if options.from_head is None else str(options.from_head),
            )
            train_head(options.model, options.data, options.out, settings, report)
        if options.acceptance is not None:
            from lab.train.acceptance import AcceptanceSettings, train_acceptance

            of_acceptance = AcceptanceSettings(num_tokens=options.tokens, seed=options.seed)
            train_acceptance(options.model, options.data, options.acceptance, of_acceptance, report)
    except KeyboardInterrupt:
        report("interrupted: what is finished is kept, the same command goes on")
        raise typer.Exit(130) from None


def _check_stages(options: Training) -> None:
    """Raises ValueError where nothing is to be done, or an option is for a stage that is left
    out."""
    stages = (
        options.generate,
        options.from_log,
        options.out,
        options.acceptance,
        options.export_data,
    )
    if all([stage is None for stage in stages]):
        raise ValueError(
            "nothing to do: give --generate TOKENS, --from-log FOLDER, --out FOLDER, --acceptance "
            "FOLDER or --export-data FOLDER"
        )
    if options.from_head is not None and options.out is None:
        raise ValueError(
            "--from-head is where --out FOLDER goes on from: give that too, or leave it out"
        )
    if options.prompts and options.generate is None:
        raise ValueError(
            "--prompts are answered by --generate TOKENS: give that too, or leave them out"
        )


if __name__ == "__main__":
    run(app)
