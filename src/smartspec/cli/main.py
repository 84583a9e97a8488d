"""`smartspec`: the commands. Heavy imports happen inside them, so that --help is quick."""

import sys
from collections.abc import Callable
from typing import Annotated


def main() -> None:
    """Console entry. Exit codes: 0 done, 2 for what the caller can set right, with one line saying
    what."""
    run(_run)


def _run() -> None:
    from smartspec.cli.vllm import run_without_typer

    run_without_typer(sys.argv[1:])
    _build_app()()


def run(app: Callable[[], None]) -> None:
    """Call a typer app, or what makes and calls one; exit codes as those of main."""
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "smartspec":
            raise
        remedy = "in a clone, pip install '.[server]' (for bench alone: '.[bench]')"
        _fail(error, f"{error.name} is not installed: {remedy}")
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        _fail(error, f"{error.filename}: {error.strerror}" if named else str(error))
    except ValueError as error:
        _fail(error, str(error))


def _build_app():
    import typer

    from smartspec import __version__
    from smartspec.cli.bench import bench
    from smartspec.cli.datastore import build, info
    from smartspec.cli.doctor import doctor
    from smartspec.cli.export import export
    from smartspec.cli.generate import generate
    from smartspec.cli.replay import replay
    from smartspec.cli.report import report
    from smartspec.cli.serve import serve
    from smartspec.cli.simulate import simulate
    from smartspec.cli.variables import VARIABLES, CommandWithVariables
    from smartspec.cli.vllm import vllm_app
    from smartspec.cli.why import why

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"smartspec {__version__}")
            raise typer.Exit

    app = typer.Typer(
        help=(
            "Serve language models with speculative decoding whose length is chosen by predicted "
            "goodput."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version.", callback=show_version)
        ] = False,
    ) -> None:
        pass

    app.command(cls=CommandWithVariables, context_settings=VARIABLES)(serve)
    for command in (generate, bench, doctor, simulate, report, export):
        app.command()(command)
    for name, told, commands in (
        ("datastore", "Build datastores of texts to draft from, and look at them.", (build, info)),
        (
            "log",
            "Read the log of `smartspec serve --decision-log`: tell why, or replay.",
            (why, replay),
        ),
    ):
        group = typer.Typer(help=told, no_args_is_help=True)
        for command in commands:
            group.command()(command)
        app.add_typer(group, name=name)
    app.add_typer(vllm_app(), name="vllm")
    return app


def _fail(error: Exception, message: str) -> None:
    one_line = " ".join(
        [*(message or type(error).__name__).split(), *getattr(error, "__notes__", ())]
    )
    print(f"error: {one_line}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
