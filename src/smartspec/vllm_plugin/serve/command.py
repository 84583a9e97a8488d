"""The command that `smartspec vllm serve` becomes: `vllm serve` with the options that SmartSpec
needs.

It adds --scheduler-cls, --speculative-config and --additional-config, an executor for drafts in the
scheduler and for adaptive verification, and on CPUs a variable for ngram. All other options are
vLLM's. vLLM is not imported here: mistakes are seen at once.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

from smartspec.core.policy_names import parse_policy
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
from smartspec.vllm_plugin.serve.config_file import with_file
from smartspec.vllm_plugin.serve.routes import (
    LONGEST,
    OWN,
    Machine,
    check_table,
    choose_observe_route,
    choose_route,
    read_object,
)
from smartspec.vllm_plugin.serve.words import drop_options, option_name, option_value
from smartspec.vllm_plugin.settings import OBSERVE, SECTION, Settings
from smartspec.vllm_plugin.tested_versions import VERSIONS, numbers

SCHEDULER = "smartspec.vllm_plugin.Scheduler"
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
# Files of vLLM that name its options; the last one before 0.32.
VLLM_OPTIONS = (
    "engine/arg_utils.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/openai/cli_args.py",
)
LEAST_ALIKE = 0.8  # of an option's name, see difflib
DRAFT_OPTIONS = ("--spec-method", "--spec-model", "--spec-tokens")
OWN_OPTIONS = (
    *DRAFT_OPTIONS,
    "--observe",
    "--print",
    *(f"--{each.name.replace('_', '-')}" for each in fields(Settings)),
)


@dataclass(frozen=True)
class Installation:
    """The vLLM of this environment."""

    machine: Machine
    # false with the package vllm-cpu: its command looks for a package named vllm, and ends
    has_command: bool

    @staticmethod
    def of(package: Path, environment: Mapping[str, str]) -> "Installation":
        """Return what is known without an import. package: the folder of vLLM's source."""
        version = version_of(package) or ""
        is_cpu = (
            "cpu" in version
            or environment.get("VLLM_TARGET_DEVICE") == "cpu"
            or _is_installed("vllm-cpu")
        )
        has_v2 = environment.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
        return Installation(Machine(is_cpu, numbers(version), has_v2), _is_installed("vllm"))


@dataclass(frozen=True)
class ServeCommand:
    """A command line of vLLM."""

    words: tuple[str, ...]
    variables: Mapping[str, str]  # that it needs beside those of the environment
    reason: str = ""  # of the route of drafts
    notes: tuple[str, ...] = ()  # for people

    def __str__(self) -> str:
        return " ".join(
            [*(f"{name}={value}" for name, value in self.variables.items()), shlex.join(self.words)]
        )


def serve_command(
    options: argparse.Namespace,
    vllm_words: list[str],
    environment: Mapping[str, str],
    installation: Installation,
) -> ServeCommand:
    """Return the command of these options. vllm_words: for vLLM as they are. ValueError on a
    contradiction."""
    known = with_file(vllm_words, OWN_OPTIONS)
    if (own := option_value(known, "--scheduler-cls")) not in (None, SCHEDULER):
        raise ValueError(
            f"--scheduler-cls {own}: this command adds {SCHEDULER}; for another use vllm serve "
            "itself"
        )
    additional = make_additional_config(options, known)
    settings = Settings.read(additional, environment)
    check_settings(settings)
    make_route = choose_observe_route if settings.policy == OBSERVE else choose_route
    route = make_route(
        options, option_value(known, "--speculative-config", "-sc"), installation.machine
    )
    speculation = dict(route.speculation)
    check_table(speculation)
    method = speculation.get("method")
    if not route.is_own and (options.drafter or options.datastore):
        raise ValueError(
            f"--drafter and --datastore are for --spec-method {OWN}, but {method or 'a model'} "
            "drafts"
        )
    executor = EXECUTOR if route.is_own or speculation.get("enable_adaptive_verification") else None
    if problem := setup_problem(_make_config(speculation, known, executor)):
        raise ValueError(
            f"{problem}; vLLM's own scheduler would serve, for which vllm serve is enough"
        )
    added = {"--scheduler-cls": SCHEDULER, "--speculative-config": json.dumps(speculation)}
    if SECTION in additional:
        added["--additional-config"] = json.dumps(additional)
    if executor is not None and option_value(known, "--distributed-executor-backend") is None:
        added["--distributed-executor-backend"] = executor
    check_model(known)
    words = [
        sys.executable,
        "-m",
        *vllm_program(drop_options(vllm_words, *added, "-sc"), installation),
    ]
    is_slow = slowness(str(method), installation.machine.is_cpu, environment) is not None
    variables = {"NUMBA_THREADING_LAYER": "workqueue"} if is_slow else {}
    words += chain.from_iterable(added.items())
    notes = memory_notes(known, environment) if installation.machine.is_cpu else ()
    return ServeCommand(tuple(words), variables, route.reason, notes)


def memory_notes(known: list[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for a CPU where neither options nor the environment limit the memory that vLLM
    takes."""
    options = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
    if KV_SPACE in environment or any(option_value(known, each) is not None for each in options):
        return ()
    return (
        f"vLLM takes 0.92 of this machine's memory, and ends where that is not free: {KV_SPACE}=4 "
        "(GiB) takes less",
    )


def check_spelling(words: list[str], package: Path) -> None:
    """Raise ValueError on an option that is nearly one of ours and that the source of vLLM does not
    have."""
    sources = [
        path.read_text("utf-8") for name in VLLM_OPTIONS if (path := package / name).is_file()
    ]
    for word in words:
        name = option_name(word.partition("=")[0])
        field = name.removeprefix("--").replace("-", "_")
        near = get_close_matches(name, OWN_OPTIONS, 1, LEAST_ALIKE) if name.startswith("--") else []
        if near and not any(re.search(rf"\b{re.escape(field)}\b", source) for source in sources):
            raise ValueError(f"unknown option {name}: did you mean {near[0]}?")


def check_settings(settings: Settings) -> None:
    """Raise ValueError on an unknown policy and on an unreadable card. The engine checks whose
    model the card is of."""
    if settings.card is not None:
        Card.read(settings.card)
    if settings.policy != OBSERVE:
        parse_policy(settings.policy, LONGEST)


def plain_command(
    options: argparse.Namespace, vllm_words: list[str], installation: Installation, problem: str
) -> ServeCommand:
    """Return a command of vLLM alone, without a class of ours. vLLM makes drafts as the caller
    said."""
    known = with_file(vllm_words, OWN_OPTIONS)
    check_model(known)
    own = {"--scheduler-cls": SCHEDULER, "--distributed-executor-backend": EXECUTOR}
    words = drop_options(
        vllm_words,
        *(name for name, value in own.items() if option_value(vllm_words, name) == value),
    )
    speculation = option_value(known, "--speculative-config", "-sc")
    if speculation is not None and NO_DRAFTS in speculation:
        words = drop_options(words, "--speculative-config", "-sc")
    draft_options = {"method": options.spec_method, "model": options.spec_model}
    draft_options = {name: value for name, value in draft_options.items() if value is not None}
    if speculation is None and draft_options and options.spec_method != OWN:
        draft_options["num_speculative_tokens"] = options.spec_tokens or LONGEST
        words += ["--speculative-config", json.dumps(draft_options)]
    reason = f"{problem}: vLLM serves alone, without SmartSpec"
    return ServeCommand((sys.executable, "-m", *vllm_program(words, installation)), {}, reason)


def check_model(known: list[str]) -> None:
    """Raise ValueError where no model is among the words of the command line and of its file."""
    if (known[:1] or ["-"])[0].startswith("-") and option_value(known, "--model") is None:
        raise ValueError("which model? Put its name or folder first: smartspec vllm serve MODEL")


def vllm_program(words: list[str], installation: Installation) -> list[str]:
    """Return the module of vLLM that serves, and its words."""
    if installation.has_command:
        return ["vllm.entrypoints.cli.main", "serve", *words]
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    return ["vllm.entrypoints.openai.api_server", *words]


def _make_config(speculation: dict, vllm_words: list[str], executor: str | None) -> SimpleNamespace:
    """The part of vLLM's configuration that is known before vLLM reads it."""
    stages = option_value(vllm_words, "--pipeline-parallel-size", "-pp") or ""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            **{"method": None, "enable_adaptive_verification": False} | speculation
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=int(stages) if stages.isdigit() else 1,
            data_parallel_size=1,
            distributed_executor_backend=option_value(vllm_words, "--distributed-executor-backend")
            or executor,
        ),
    )


def make_additional_config(options: argparse.Namespace, vllm_words: list[str]) -> dict:
    """Return vLLM's additional configuration: the caller's own, with the settings among the
    options."""
    text = option_value(vllm_words, "--additional-config")
    additional = {} if text is None else read_object("--additional-config", text)
    if options.observe and options.policy not in (None, OBSERVE):
        raise ValueError(f"--observe and --policy {options.policy}: say one of them")
    settings = {each.name: vars(options)[each.name] for each in fields(Settings)}
    if options.observe:
        settings["policy"] = OBSERVE
    settings = {name: value for name, value in settings.items() if value is not None}
    if settings and SECTION in additional:
        raise ValueError(
            f"--additional-config has {SECTION!r}, and {sorted(settings)} are options too: say it "
            "once"
        )
    return additional | ({SECTION: settings} if settings else {})


class UntestedError(ValueError):
    """vLLM is newer than the versions that were tested."""


def check_package() -> Path:
    """Return the folder of the installed package vllm. ValueError where none is installed, or none
    that is supported. UntestedError, with the reason, where it is to serve alone."""
    package = installed_package()
    if package is None:
        least, newest = (".".join(map(str, bound)) for bound in VERSIONS)
        raise ValueError(
            f"vLLM is not installed for {sys.executable}: pip install 'vllm>={least},<={newest}.99'"
        )
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
    """Return the command for the installed vLLM. ValueError on a contradiction, and where no vLLM
    is supported."""
    try:
        package, problem = check_package(), None
    except UntestedError as error:
        package, problem = installed_package(), str(error)
    check_spelling(vllm_words, package)
    installation = Installation.of(package, os.environ)
    if problem is not None:
        return plain_command(options, vllm_words, installation, problem)
    return serve_command(options, vllm_words, os.environ, installation)
