"""`smartspec vllm`: vLLM with SmartSpec. The commands read their options themselves, so that they
run where typer is not installed, with numpy alone; `python -m smartspec.vllm_plugin.serve`, `...
.check` and so on are the same."""

import sys
from importlib import import_module
from importlib.util import find_spec

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
PLUGIN = "smartspec.vllm_plugin"
# by name: the module whose main gets the arguments, and what it does
COMMANDS = {
    "serve": (
        f"{PLUGIN}.serve.__main__",
        "Run vllm serve with the options that SmartSpec needs; all others are vLLM's.",
    ),
    "check": (f"{PLUGIN}.check", "Say what the plugin needs of vLLM and this version lacks."),
    "observed": (
        f"{PLUGIN}.observed.__main__",
        "Say what a server observed: speed now, what each draft length would make, the crossover, "
        "the regret.",
    ),
    "ab": (
        f"{PLUGIN}.ab.__main__",
        "Say what SmartSpec brings on a server's own traffic (--act), from its /metrics.",
    ),
    "off": (
        f"{PLUGIN}.switch",
        "Serve without drafts from now on: all servers of a cache folder, without a restart.",
    ),
    "on": (f"{PLUGIN}.switch", "Serve with drafts again."),
}


def vllm_app():
    """The commands for typer, which lists them and passes all options on."""
    import typer

    app = typer.Typer(
        help="Serve with vLLM, draft lengths decided by SmartSpec.", no_args_is_help=True
    )

    def run(context: typer.Context) -> None:
        raise typer.Exit(run_command(context.command.name, context.args))

    for name, (_, told) in COMMANDS.items():
        app.command(name, help=told, context_settings=PASSED_ON)(run)
    return app


def run_without_typer(arguments: list[str]) -> None:
    """`smartspec vllm ...` by its arguments, after which the process ends; nothing where there is
    no such command and typer can say so."""
    if arguments[:1] != ["vllm"]:
        return
    if len(arguments) > 1 and arguments[1] in COMMANDS:
        sys.exit(run_command(arguments[1], arguments[2:]))
    if find_spec("typer") is None:
        lines = (f"  {name:8}  {told}" for name, (_, told) in COMMANDS.items())
        print("usage: smartspec vllm COMMAND ...; each has a --help", *lines, sep="\n")
        sys.exit(0 if arguments[1:] == ["--help"] else 2)


def run_command(name: str, arguments: list[str]) -> int:
    """on and off are one program, which gets the word first."""
    main = import_module(COMMANDS[name][0]).main
    return main([name, *arguments] if name in ("off", "on") else arguments)
