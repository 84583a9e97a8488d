"""`smartspec log`: commands that read a decision log."""

import typer

from smartspec.cli.replay import replay
from smartspec.cli.why import why


def log_app() -> typer.Typer:
    app = typer.Typer(
        help="Read the log of `smartspec serve --decision-log`: tell why, or replay.",
        no_args_is_help=True,
    )
    app.command()(why)
    app.command()(replay)
    return app
