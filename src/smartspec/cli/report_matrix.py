"""The matrix that the options of `smartspec report` mean."""

import shlex
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from smartspec.cli.policy_list import policy_list
from smartspec.cli.report_options import (
    CONCURRENCY,
    MAX_TOKENS,
    POLICIES,
    QUICK_CONCURRENCY,
    QUICK_MAX_TOKENS,
    QUICK_REQUESTS,
    QUICK_WORKLOADS,
    WORKLOADS,
    Chosen,
)
from smartspec.cli.scenario_options import settings_of

if TYPE_CHECKING:
    from smartspec.report.live import ServerOptions
    from smartspec.report.matrix import Cell, Load, Matrix, Step, Variant


def scenario_settings(chosen: Chosen, given: dict) -> dict:
    """Settings of the scenarios; none where nothing is simulated. ValueError for one that is then
    given in vain."""
    from smartspec.sim.settings import ScenarioSettings

    settings = settings_of(given)
    if chosen.simulate:
        return settings | ({} if chosen.model is None else {"model": chosen.model})
    defaults = {field.name: field.default for field in fields(ScenarioSettings)}
    for name, value in settings.items():
        if value != defaults[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} {value} is for simulations: give --simulate, or leave "
                "it out"
            )
    return {}


def matrix_of(chosen: Chosen, settings: dict) -> tuple["Matrix", dict]:
    """The matrix and the prompts of each workload. Raises ValueError naming the option that is
    wrong."""
    from smartspec.report.matrix import Matrix
    from smartspec.report.simulated import check_scenarios

    _check_together(chosen)
    prompts = {} if chosen.simulate else _prompts(chosen)
    matrix = Matrix(
        tuple(_variants(chosen)),
        tuple(_cells(chosen, prompts)),
        chosen.max_tokens or (QUICK_MAX_TOKENS if chosen.quick else MAX_TOKENS),
        chosen.requests or (QUICK_REQUESTS if chosen.quick and not chosen.simulate else None),
        chosen.seconds or (60.0 if chosen.simulate else 20.0),
        chosen.temperature,
        chosen.seed,
        _simulated_settings(chosen, settings)
        if chosen.simulate
        else _live_settings(chosen, prompts),
    )
    if chosen.simulate:
        check_scenarios(matrix, settings)
    return matrix, prompts


def _check_together(chosen: Chosen) -> None:
    if chosen.simulate and (chosen.base_url or chosen.prompts or chosen.workloads):
        raise ValueError(
            "--simulate has no servers and no prompts: leave --base-url, --prompts and --workloads "
            "out"
        )
    if chosen.controller_time not in ("measured", "none"):
        raise ValueError(
            f"--controller-time must be measured or none, got {chosen.controller_time!r}"
        )
    if chosen.time_scale != 1 and chosen.trace is None:
        raise ValueError(
            f"--time-scale {chosen.time_scale:g} is for a --trace, and there is none: leave it out"
        )
    if chosen.cv != "1" and chosen.rates is None:
        raise ValueError(f"--cv {chosen.cv} is for --rates, and there are none: give rates")


def _live_settings(chosen: Chosen, prompts: dict) -> dict:
    from hashlib import sha256

    texts = "\0".join(prompt.text for some in prompts.values() for prompt in some)
    return {
        "model": chosen.model,
        "serve_options": chosen.serve_options,
        "ignore_eos": chosen.ignore_eos,
        "timeout": chosen.timeout,
        "prompts": "shipped" if chosen.prompts is None else chosen.prompts.name,
        "digest of the prompts": sha256(texts.encode()).hexdigest()[:12],
    }


def _simulated_settings(chosen: Chosen, settings: dict) -> dict:
    return {"simulated": True, "model": "8b", **settings, "controller_time": chosen.controller_time}


def _variants(chosen: Chosen) -> list["Variant"]:
    from smartspec.core.policy_names import parse_policy
    from smartspec.report.matrix import Variant

    running = [_running_server(text) for text in chosen.base_url or ()]
    if running and chosen.policies is None:
        if chosen.drafters is not None:
            raise ValueError(
                f"--drafters {chosen.drafters} is for started servers: give --policies too"
            )
        return running
    started = []
    for policy in policy_list(chosen.policies or POLICIES):
        parse_policy(policy, 1000)
        if policy == "off":
            started.append(Variant("off", "off", "none"))
            continue
        for drafters in [None] if chosen.drafters is None else _listed(chosen.drafters):
            name = policy if drafters is None else f"{policy}+{drafters}"
            started.append(
                Variant(name, policy, None if drafters is None else drafters.replace("+", ","))
            )
    return [*running, *started]


def _running_server(text: str) -> "Variant":
    from smartspec.bench.probe import normalize_base_url
    from smartspec.report.matrix import Variant

    name, is_named, url = text.partition("=")
    if not is_named or "/" in name or not name:
        raise ValueError(f"--base-url must look like NAME=http://127.0.0.1:8000, got {text!r}")
    return Variant(name, base_url=normalize_base_url(url))


def _prompts(chosen: Chosen) -> dict:
    """The prompts of each chosen workload. ValueError naming one that does not exist, or a bad line
    of a file."""
    from smartspec.workload.workloads import read_workloads, shipped_workloads

    known = shipped_workloads() if chosen.prompts is None else read_workloads(chosen.prompts)
    text = chosen.workloads
    if text is None and chosen.prompts is None:
        text = QUICK_WORKLOADS if chosen.quick else WORKLOADS
    if text in (None, "all"):
        return known
    names = _listed(text)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"--workloads: there is no workload {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return {name: known[name] for name in names}


def _cells(chosen: Chosen, prompts: dict) -> list["Cell"]:
    from smartspec.report.matrix import CHANGING, MIXED, Cell, Load
    from smartspec.report.simulated import PREFIX

    workloads = (
        [PREFIX + each for each in _listed(chosen.acceptances)]
        if chosen.simulate
        else list(prompts)
    )
    default = QUICK_CONCURRENCY if chosen.quick else CONCURRENCY
    levels = default if chosen.concurrency is None else chosen.concurrency
    closed = (
        []
        if levels == "none"
        else [Load(concurrency=n) for n in _numbers("--concurrency", levels, int)]
    )
    cells = [Cell(workload, load) for workload in workloads for load in closed]
    arriving = workloads if chosen.simulate else _rate_workloads(chosen, workloads)
    cells += [Cell(workload, load) for workload in arriving for load in _open_loads(chosen)]
    mixed = workloads if chosen.simulate else [MIXED]
    if chosen.trace is not None:
        load = Load(trace=str(chosen.trace), time_scale=chosen.time_scale)
        cells += [Cell(workload, load) for workload in mixed]
    if chosen.steps is not None:
        cells.append(Cell(CHANGING, Load(steps=tuple(_steps(chosen.steps, [*workloads, MIXED])))))
    return cells


def _open_loads(chosen: Chosen) -> list["Load"]:
    from smartspec.report.matrix import Load

    if chosen.rates is None:
        return []
    rates, cvs = _numbers("--rates", chosen.rates, float), _numbers("--cv", chosen.cv, float)
    return [Load(rate=rate, cv=cv) for cv in cvs for rate in rates]


def _rate_workloads(chosen: Chosen, workloads: list[str]) -> list[str]:
    from smartspec.report.matrix import MIXED

    if chosen.rate_workloads == "each":
        return workloads
    names = _listed(chosen.rate_workloads)
    if unknown := [name for name in names if name not in (*workloads, MIXED)]:
        known = ", ".join([MIXED, "each", *workloads])
        raise ValueError(
            f"--rate-workloads: {', '.join(unknown)} is not measured here; there are {known}"
        )
    return names


def _steps(text: str, workloads: list[str]) -> list["Step"]:
    from smartspec.report.matrix import Step

    steps = []
    for part in _listed(text):
        if part.count(":") != 2:
            raise ValueError(
                f"--steps must be WORKLOAD:RATE:SECONDS separated by commas, got {part!r}"
            )
        name, rate, seconds = part.split(":")
        if name not in workloads:
            raise ValueError(
                f"--steps {part!r}: there is no workload {name!r}; there are {', '.join(workloads)}"
            )
        steps.append(
            Step(name, *(_numbers("--steps", number, float)[0] for number in (rate, seconds)))
        )
    return steps


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(option: str, text: str, kind: Callable) -> list:
    """ValueError naming the option if one is none, or not above 0."""
    try:
        found = [kind(part) for part in _listed(text)]
    except ValueError:
        found = []
    if not found or not all(0 < number < float("inf") for number in found):
        raise ValueError(f"{option} must be numbers above 0 separated by commas, got {text!r}")
    return found


def server_options(chosen: Chosen) -> "ServerOptions":
    from smartspec.report.live import ServerOptions

    return ServerOptions(
        chosen.model,
        tuple(shlex.split(chosen.serve_options)),
        chosen.api_key,
        chosen.timeout,
        chosen.ignore_eos,
    )
