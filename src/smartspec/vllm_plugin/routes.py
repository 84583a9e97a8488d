"""How drafts are made by the command of serve.py, and why so: the route. vLLM is not imported.

On CPUs, drafts of ours are made in the scheduler where no head or draft model is named. On GPUs that takes vLLM's V1
runner, synchronous scheduling and steps without full graphs: a fifth of plain vLLM's speed is lost on an H100, with no
draft made. There vLLM's n-gram of the V2 runner drafts on the GPU, and all lengths to choose from have captured graphs.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass

from smartspec.vllm_plugin.compatibility import NO_DRAFTS

OWN = "smartspec"  # the method whose drafts are made in the scheduler
LONGEST = 5
TABLE = "num_speculative_tokens_per_batch_size"
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # vLLM's own default finds matches of five tokens alone
NGRAMS = ("ngram", "ngram_gpu")
MODEL_FREE = (OWN, *NGRAMS, "suffix")
WITHOUT_PASSES = (*MODEL_FREE, "medusa", "custom_class")  # no draft of them can be left out for a copy
NEED_A_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "dflash", "custom_class")
V1_ONLY = ("suffix", "medusa", "custom_class", OWN)
FIRST_WITH_LENGTHS = (0, 32)  # of vLLM: its V2 runner honours a length per step from here on
MOST_REQUESTS = 1024  # of a step, in tables: vLLM takes the last length for more


@dataclass(frozen=True)
class Machine:
    """is_cpu: whether vLLM computes on the CPU. version: of vLLM, first two numbers, None if unknown. may_use_v2: false
    where its V2 runner is switched off."""

    is_cpu: bool
    version: tuple[int, int] | None = None
    may_use_v2: bool = True

    @property
    def problem(self) -> str | None:
        """Why vLLM's V2 runner takes no draft lengths here."""
        if self.is_cpu:
            return "vLLM computes on the CPU"
        if not self.may_use_v2:
            return "VLLM_USE_V2_MODEL_RUNNER=0 switches vLLM's V2 runner off"
        if self.version is not None and self.version < FIRST_WITH_LENGTHS:
            return f"vLLM {'.'.join(map(str, self.version))} has no draft length per step in its V2 runner (0.32 has)"
        return None


@dataclass(frozen=True)
class Route:
    """speculation: vLLM's speculative configuration. why: a sentence for people."""

    speculation: Mapping[str, object]
    why: str

    @property
    def is_own(self) -> bool:
        return self.speculation.get("model") == NO_DRAFTS


def route_of(options: argparse.Namespace, given: str | None, machine: Machine) -> Route:
    """The caller's own configuration, or one made of the options. given: the value of --speculative-config. ValueError
    on a contradiction, and where only a route is left that is known to be slower than vLLM without speculation."""
    made = {"method": options.spec_method, "model": options.spec_model, "num_speculative_tokens": options.spec_tokens}
    made = {name: value for name, value in made.items() if value is not None}
    if given is not None:
        if made:
            raise ValueError(f"--speculative-config and {sorted(made)}: say it once")
        return Route(object_of("--speculative-config", given), "drafts are made as --speculative-config says")
    _check(options)
    length = options.spec_tokens or LONGEST
    if options.spec_method is None and options.spec_model is None:
        return _default_route(length, machine)
    if options.spec_method == OWN:
        return _in_scheduler(length, machine)
    made = made | {"num_speculative_tokens": length} | (LOOKUP if options.spec_method in NGRAMS else {})
    named = options.spec_method or f"model {options.spec_model}"
    if machine.problem is None and options.spec_method not in V1_ONLY:
        return Route(made | _captured(length), f"drafts by {named}; each length has captured graphs (V2 runner)")
    return Route(made, f"drafts by {named}")


def check_table(speculation: Mapping[str, object]) -> None:
    """ValueError names a length of the table that is longer than drafts are: vLLM would cut it without a word."""
    table, longest = speculation.get(TABLE), speculation.get("num_speculative_tokens")
    for row in table if isinstance(table, list) else ():
        length = row[-1] if isinstance(row, list | tuple) and row else None
        if isinstance(length, int) and isinstance(longest, int) and length > longest:
            raise ValueError(
                f"{TABLE} has length {length}, and num_speculative_tokens is {longest}: name no longer draft than "
                "there is"
            )


def captured_lengths(longest: int) -> list[int]:
    """Draft lengths to choose from where each needs captured graphs of its own, which take memory and time."""
    return sorted({1, (longest + 1) // 2, longest})


def object_of(option: str, text: str) -> dict:
    """The JSON object that an option has. ValueError where it is none."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option} {text}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{option} {text}: it must be an object, for example {{...}}")
    return found


def _default_route(length: int, machine: Machine) -> Route:
    if machine.is_cpu:
        return _in_scheduler(length, machine)
    if machine.problem is not None:
        raise ValueError(
            f"{machine.problem}: drafts without a head would make vLLM slower than no speculation on this GPU (0.77 "
            "to 0.81 on an H100). Name a head or draft model (--spec-method, --spec-model), or --spec-method "
            f"{OWN} if you want it all the same"
        )
    # Under the name ngram, vLLM 0.32 schedules synchronously.
    ngram = {"method": "ngram_gpu", "num_speculative_tokens": length} | LOOKUP | _captured(length)
    return Route(ngram, "n-gram drafts on the GPU: V2 runner, asynchronous scheduling, full graphs of each length")


def _in_scheduler(length: int, machine: Machine) -> Route:
    own = {"model": NO_DRAFTS, "num_speculative_tokens": length}
    if machine.is_cpu:
        return Route(own, "drafts are made in the scheduler: vLLM computes on the CPU")
    return Route(
        own,
        "drafts are made in the scheduler, by name. On GPUs vLLM then takes its V1 runner without full graphs: "
        "on an H100 that made 0.77 to 0.81 of the tokens of no speculation",
    )


def _captured(longest: int) -> dict[str, list[list[int]]]:
    """A table that has vLLM capture graphs for a length of 0 and those to choose from. What it says is not used."""
    lengths = [*reversed(captured_lengths(longest)), 0]
    ends = [*range(1, len(lengths)), MOST_REQUESTS]
    starts = range(1, len(lengths) + 1)
    return {TABLE: [list(row) for row in zip(starts, ends, lengths, strict=True)]}


def _check(options: argparse.Namespace) -> None:
    method, model, length = options.spec_method, options.spec_model, options.spec_tokens
    if method in MODEL_FREE and model is not None:
        raise ValueError(f"--spec-method {method} drafts without a model: leave --spec-model {model} out")
    if method in NEED_A_MODEL and model is None:
        raise ValueError(f"--spec-method {method} needs --spec-model: the drafter's name or folder")
    if length is not None and length < 1:
        raise ValueError(f"--spec-tokens {length}: use at least 1, or --policy off for none")
