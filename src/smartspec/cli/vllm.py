"""`smartspec vllm`: vLLM with SmartSpec. The commands read their options themselves, so that they
run where typer is not installed, with numpy alone; `python -m smartspec.vllm_plugin.serve`, `...
.check` and so on are the same."""

import sys
from collections.abc import Callable
from importlib.util import find_spec

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def vllm_app():
    """The commands for typer, which lists them and passes all options on."""
    import typer

    app = typer.Typer(
        help="Serve with vLLM, draft lengths decided by SmartSpec.", no_args_is_help=True
    )

    def add(command: Callable[[list[str]], int]) -> None:
        def run(context: typer.Context) -> None:
            raise typer.Exit(command(context.args))

        run.__doc__ = command.__doc__
        app.command(name=command.__name__, context_settings=PASSED_ON)(run)

    for command in COMMANDS.values():
        add(command)
    return app


def run_without_typer(arguments: list[str]) -> None:
    """`smartspec vllm ...` by its arguments, after which the process ends; nothing where there is
    no such command and typer can say so."""
    if arguments[:1] != ["vllm"]:
        return
    if len(arguments) > 1 and arguments[1] in COMMANDS:
        sys.exit(COMMANDS[arguments[1]](arguments[2:]))
    if find_spec("typer") is None:
        print(
            "usage: smartspec vllm COMMAND ...; each has a --help", *map(_line, COMMANDS), sep="\n"
        )
        sys.exit(0 if arguments[1:] == ["--help"] else 2)


def _line(name: str) -> str:
    text = " ".join((COMMANDS[name].__doc__ or "").split())
    return f"  {name:8}  {text}"


def serve(arguments: list[str]) -> int:
    """Run vllm serve with the options that SmartSpec needs; all others are vLLM's."""
    from smartspec.vllm_plugin.serve.__main__ import main

    return main(arguments)


def check(arguments: list[str]) -> int:
    """Say what the plugin needs of vLLM and this version lacks."""
    from smartspec.vllm_plugin.check import main

    return main(arguments)


def ab(arguments: list[str]) -> int:
    """Say what SmartSpec brings on a server's own traffic (--act), from its /metrics."""
    from smartspec.vllm_plugin.ab.__main__ import main

    return main(arguments)


def off(arguments: list[str]) -> int:
    """Serve without drafts from now on: all servers of a cache folder, without a restart."""
    from smartspec.vllm_plugin.switch import main

    return main(["off", *arguments])


def on(arguments: list[str]) -> int:
    """Serve with drafts again."""
    from smartspec.vllm_plugin.switch import main

    return main(["on", *arguments])


def observed(arguments: list[str]) -> int:
    """Say what a server observed: speed now, what each draft length would make, the crossover, the
    regret."""
    from smartspec.vllm_plugin.observed.__main__ import main

    return main(arguments)


COMMANDS = {command.__name__: command for command in (serve, check, observed, ab, off, on)}
