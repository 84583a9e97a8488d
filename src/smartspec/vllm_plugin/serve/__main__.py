"""`smartspec vllm serve MODEL ...`, or, where the command line's libraries are missing,
`python -m smartspec.vllm_plugin.serve MODEL ...`: prints the command of command.py, and becomes
it."""

import argparse
import os
import sys
from dataclasses import fields

from smartspec.vllm_plugin.serve.command import make_command
from smartspec.vllm_plugin.serve.routes import LONGEST, OWN
from smartspec.vllm_plugin.settings import Settings

HELP = {
    "policy": "who decides: goodput (default), off, fixed:K, uniform:K,..., observe, or module:Class",  # noqa: E501
    "decision_log": "new file for a line of JSON per decision",
    "cache": "folder of step times, metrics and the file `off` (default: ~/.cache/smartspec)",
    "metrics_seconds": "seconds between two hand-overs of metrics to the API server (default: 1)",
    "drafter": (
        "drafters in the scheduler: prompt-lookup, datastore, recycling or module:Class, with "
        "commas between"
    ),
    "datastore": (
        "folder of the drafter datastore's texts, none for none (default: one that fits the "
        "tokenizer)"
    ),
    "card": (
        "card to start from where the cache has no step times (`smartspec vllm observed --card "
        "FILE` writes one)"
    ),
    "act": (
        "compare: 30 s with SmartSpec and 30 s without, again and again; `smartspec vllm ab URL` "
        "shows the ratio"
    ),
    "guard": (
        "share of the speed without drafts below which they go off; 0: never (default: 0.97 with "
        "goodput, else 0)"
    ),
}
EXPLANATION = """\
It becomes `vllm serve` with --scheduler-cls, --speculative-config and --additional-config, and prints that command.
Without --spec-method and --spec-model, drafts are n-grams. All other options are vLLM's.
Later: `smartspec vllm off` and `on` (drafts, at once), `ab URL`, `observed`; each has a --help.
vLLM warns that the interface of schedulers is not public. That is so: versions are tested one by one, and
`smartspec vllm check` reads the installed one. On a CPU, vLLM takes 0.92 of the memory: VLLM_CPU_KVCACHE_SPACE=4 (GiB
for KV) takes less."""  # noqa: E501


def make_parser() -> argparse.ArgumentParser:
    """The options of this command. Names that vLLM has too mean what they mean there."""
    parser = argparse.ArgumentParser(
        prog="smartspec vllm serve",
        usage="smartspec vllm serve MODEL [options] [any option of vllm serve]",
        description=(
            "vllm serve, with draft lengths decided by SmartSpec, in every step and for every "
            "request."
        ),
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--spec-method",
        metavar="NAME",
        help=(
            f"vLLM's method of drafting, or {OWN}: in the scheduler. Default: ngram on GPUs, {OWN} "
            "on CPUs"
        ),
    )
    parser.add_argument(
        "--spec-model", metavar="MODEL", help="draft model or head, where the method needs one"
    )
    parser.add_argument(
        "--spec-tokens", metavar="K", type=int, help=f"longest draft (default: {LONGEST})"
    )
    for each in fields(Settings):
        is_switch = {"action": "store_true", "default": None} if each.default is False else {}
        parser.add_argument(f"--{each.name.replace('_', '-')}", help=HELP[each.name], **is_switch)
    parser.add_argument(
        "--observe",
        action="store_true",
        help=(
            "change nothing: vLLM decides, and `smartspec vllm observed` says what other lengths "
            "would make"
        ),
    )
    parser.add_argument("--print", action="store_true", help="show the command, and do not run it")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Become the command. Exit status: 0 with --print, 2 on what the caller can set right, with one
    line."""
    options, words = make_parser().parse_known_args(arguments)
    try:
        command = make_command(options, words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"# {command.reason}", command, sep="\n", flush=True)
    if not options.print:
        os.execve(command.words[0], command.words, {**os.environ, **command.variables})
    return 0


if __name__ == "__main__":
    sys.exit(main())
