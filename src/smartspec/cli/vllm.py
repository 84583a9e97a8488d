"""`smartspec vllm`: vLLM with SmartSpec. The commands read their options themselves, as they also run where typer is
not installed: `python -m smartspec.vllm_plugin.serve` and `... .check`, `... .observed`."""

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def vllm_app() -> typer.Typer:
    app = typer.Typer(help="Serve with vLLM, draft lengths decided by SmartSpec.", no_args_is_help=True)
    app.command(context_settings=PASSED_ON)(serve)
    app.command(context_settings=PASSED_ON)(check)
    app.command(context_settings=PASSED_ON)(observed)
    return app


def serve(context: typer.Context) -> None:
    """Run vllm serve with the options that SmartSpec needs; all others are vLLM's."""
    from smartspec.vllm_plugin.serve import main

    raise typer.Exit(main(context.args))


def check(context: typer.Context) -> None:
    """Say what the plugin needs of vLLM and this version lacks."""
    from smartspec.vllm_plugin.check import main

    raise typer.Exit(main(context.args))


def observed(context: typer.Context) -> None:
    """Say what a server observed: speed now, what each draft length would make, the crossover, the regret."""
    from smartspec.vllm_plugin.observed import main

    raise typer.Exit(main(context.args))
