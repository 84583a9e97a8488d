"""A command whose options are variables, too: --max-batch is SMARTSPEC_MAX_BATCH. What is wrong
with one is named."""

import difflib
import os
import re
import sys

from typer import BadParameter, Context
from typer.core import TyperCommand

PREFIX = "SMARTSPEC_"
VARIABLES = {"auto_envvar_prefix": PREFIX.rstrip("_")}  # context settings of such a command
OTHERS = ("cache", "sglang", "untested")  # variables that are no options
# What Kubernetes gives every container for a Service named `smartspec`, and Docker for a link.
_OF_A_SERVICE = re.compile(r"(tcp|udp|sctp)://.*")
REMEDY = "enableServiceLinks: false keeps Kubernetes from setting it"
_NAME_OF_A_SERVICE = re.compile(r"(.*_)?(service_(host|port.*)|port_\d+_(tcp|udp|sctp).*)")


class CommandWithVariables(TyperCommand):
    """Reads its options, then runs; errors tell the variables that were read."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        names = [each.name for each in self.params if each.name]
        for variable in [each for each in os.environ if each.startswith(PREFIX)]:
            _check(variable, names)
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            if error.param is not None and error.param.name in _read_from_variables(ctx):
                error.message = f"{error.message} (variable {_variable(error.param.name)})"
            raise

    def invoke(self, ctx: Context) -> object:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            if names := [_variable(name) for name in _read_from_variables(ctx)]:
                error.add_note(f"(options from variables: {', '.join(names)})")
            raise


def _variable(option: str) -> str:
    return PREFIX + option.upper()


def _read_from_variables(ctx: Context) -> list[str]:
    """Names of the options that were."""
    names = [each.name for each in ctx.command.params if each.name]
    return [
        name
        for name in names
        if (source := ctx.get_parameter_source(name)) and source.name == "ENVIRONMENT"
    ]


def _check(variable: str, options: list[str]) -> None:
    """Say what is wrong with a variable's name, or take it away where its value is none of ours."""
    name, value = variable.removeprefix(PREFIX).lower(), os.environ[variable]
    problem, close = None, difflib.get_close_matches(name, options, n=1, cutoff=0.8)
    if name in options and _OF_A_SERVICE.fullmatch(value):
        del os.environ[variable]
        problem = (
            f"the address of a Service named smartspec is no {name} here, and passed over: {REMEDY}"
        )
    elif close and name not in (*options, *OTHERS) and not _NAME_OF_A_SERVICE.fullmatch(name):
        problem = f"there is no option {variable}: did you mean {_variable(close[0])}?"
    if problem:
        print(f"WARNING: {problem}", file=sys.stderr, flush=True)
