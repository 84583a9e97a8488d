"""What people write of a matrix, read: variants, workloads and loads."""

from collections.abc import Callable, Sequence
from pathlib import Path

from smartspec.bench.probe import normalize_base_url
from smartspec.core.policy_names import parse_policy
from smartspec.report.loads import Prompts
from smartspec.report.matrix import CHANGING, MIXED, Cell, Load, Step, Variant
from smartspec.workload.workloads import read_workloads, shipped_workloads


def started_variants(policies: Sequence[str], drafters: str | None) -> list[Variant]:
    """Each policy with each set of drafters, which are joined by +; the policy off has none."""
    started = []
    for policy in policies:
        parse_policy(policy, 1000)
        if policy == "off":
            started.append(Variant("off", "off", "none"))
            continue
        for named in [None] if drafters is None else _listed(drafters):
            name = policy if named is None else f"{policy}+{named}"
            started.append(
                Variant(name, policy, None if named is None else named.replace("+", ","))
            )
    return started


def running_server(text: str) -> Variant:
    """A server that runs already, of NAME=URL."""
    name, is_named, url = text.partition("=")
    if not is_named or "/" in name or not name:
        raise ValueError(f"--base-url must look like NAME=http://127.0.0.1:8000, got {text!r}")
    return Variant(name, base_url=normalize_base_url(url))


def chosen_prompts(path: Path | None, workloads: str) -> Prompts:
    """The prompts of each of these workloads, or of `all`; the shipped ones without a path.
    ValueError naming one that does not exist, or a bad line of a file."""
    known = shipped_workloads() if path is None else read_workloads(path)
    if workloads == "all":
        return known
    names = _listed(workloads)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"--workloads: there is no workload {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return {name: known[name] for name in names}


def cells_of(
    workloads: Sequence[str], concurrency: str, rates: str | None, steps: str | None
) -> list[Cell]:
    """Each workload in closed loops, all of them by turns at each rate, and a load that changes."""
    levels = [] if concurrency == "none" else _numbers("--concurrency", concurrency, int)
    cells = [Cell(workload, Load(concurrency=n)) for workload in workloads for n in levels]
    if rates is not None:
        cells += [Cell(MIXED, Load(rate=rate)) for rate in _numbers("--rates", rates, float)]
    if steps is not None:
        cells.append(Cell(CHANGING, Load(steps=tuple(_steps(steps, [*workloads, MIXED])))))
    return cells


def _steps(text: str, workloads: Sequence[str]) -> list[Step]:
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
        numbers = (_numbers("--steps", number, float)[0] for number in (rate, seconds))
        steps.append(Step(name, *numbers))
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
