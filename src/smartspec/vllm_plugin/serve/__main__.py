"""`smartspec vllm serve MODEL ...`, or, where the command line's libraries are missing,
`python -m smartspec.vllm_plugin.serve MODEL ...`: prints the command of command.py, and becomes it."""

import argparse
import os
import sys
from dataclasses import fields

from smartspec.vllm_plugin.serve.command import make_command
from smartspec.vllm_plugin.serve.routes import LONGEST, OWN
from smartspec.vllm_plugin.settings import Settings


def make_parser() -> argparse.ArgumentParser:
    """The options of this command. Names that vLLM has too mean what they mean there."""
    parser = argparse.ArgumentParser(
        prog="smartspec vllm serve",
        usage="smartspec vllm serve MODEL [options] [any option of vllm serve]",
        description="vllm serve, with draft lengths decided by SmartSpec. Prints the command it becomes.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--spec-method",
        metavar="NAME",
        help=f"vLLM's method of drafting, or {OWN}: in the scheduler. Default: ngram on GPUs, {OWN} on CPUs",
    )
    parser.add_argument("--spec-model", metavar="MODEL", help="draft model or head, where the method needs one")
    parser.add_argument("--spec-tokens", metavar="K", type=int, help=f"longest draft (default: {LONGEST})")
    for each in fields(Settings):
        is_switch = {"action": "store_true", "default": None} if each.default is False else {}
        name = f"--{each.name.replace('_', '-')}"
        parser.add_argument(name, help=f"setting {each.name} of docs/vllm.md", **is_switch)
    parser.add_argument(
        "--observe",
        action="store_true",
        help="vLLM decides draft lengths, and SmartSpec observes (docs/observe.md): --policy observe",
    )
    parser.add_argument("--print", action="store_true", help="show the command, and do not run it")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Become the command. Exit status: 0 with --print, 2 on what the caller can set right, with one line."""
    options, words = make_parser().parse_known_args(arguments)
    try:
        command = make_command(options, words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"# {command.reason}\n{command}", flush=True)
    if not options.print:
        os.execve(command.words[0], command.words, {**os.environ, **command.variables})
    return 0


if __name__ == "__main__":
    sys.exit(main())
