"""`smartspec log`: what a decision log says."""

import typer

from smartspec.cli.replay import replay
from smartspec.cli.why import why


def log_app() -> typer.Typer:
    app = typer.Typer(help="What the log of `smartspec serve --decision-log` says.", no_args_is_help=True)
    app.command()(why)
    app.command()(replay)
    return app
