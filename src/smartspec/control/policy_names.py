"""Policies by name, as people write them: goodput, off, fixed:4, batch-table, batch-table:0.6,
batch-table:FILE, module:Class; and published ones, from the repository's lab (lab.policies)."""

from collections.abc import Callable
from typing import Any

from smartspec.control.baselines.batch_table import BatchTable
from smartspec.control.baselines.static import Fixed, Off
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.uniform import Uniform
from smartspec.control.lab_tables import WHERE, lab_table
from smartspec.control.own_class import is_own_class, load_class, make_own
from smartspec.control.policy import Policy

POLICIES: dict[str, Callable[..., Policy]] = {
    "goodput": Goodput,
    "off": Off,
    "batch-table": BatchTable,
}
# The parameter a name may carry after a colon: type, least and largest value, and FILE where that
# may stand instead.
FILE = ".json"  # the path of a profiling run
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "batch-table": (float, 0, 1, FILE),  # acceptance while profiling
}
# these need the ground truth, which the simulator alone has
TOLD = ("perfect-estimates", "perfect-outcomes")
OURS = (
    "goodput, off, fixed:K (K a number of draft tokens, for example fixed:4), uniform:K,K,... "
    "(goodput with one of these lengths for all requests of a step), batch-table[:number]"
)


def published_policies() -> dict[str, Callable[..., Policy]]:
    """Return the policies of the repository's lab; none where it is not found."""
    return lab_table("policies", "POLICIES")


def all_policies(max_draft_tokens: int) -> list[str]:
    """Return every policy with its defaults, and three fixed lengths, as far as drafts may be so
    long."""
    fixed = [f"fixed:{length}" for length in (1, 3, 5) if length <= max_draft_tokens]
    return ["off", *fixed, *(name for name in (*POLICIES, *published_policies()) if name != "off")]


def parse_policy(name: str, max_draft_tokens: int | None = None) -> Policy:
    """Return a new policy of that name. ValueError if there is none, if its number is out of range,
    or if a user's own class cannot be loaded (see own_class)."""
    kind, colon, text = name.partition(":")
    if kind in TOLD:
        raise ValueError(
            f"policy {kind!r} must be told the true acceptance and time: it exists only in the "
            "simulator"
        )
    if kind == "fixed" and text.isascii() and text.isdigit():
        return _fixed(name, int(text), max_draft_tokens)
    if kind == "uniform":
        return Uniform(_lengths(name, text, max_draft_tokens))
    is_ours = kind in (*POLICIES, "fixed")
    policies = POLICIES if is_ours else published_policies()
    if is_own_class(name) and not is_ours and kind not in policies:
        return make_own(name, "policy", load_class(name, "policy", _missing_members))
    parameters = PARAMETERS if is_ours else lab_table("policies", "PARAMETERS")
    if kind not in policies or (colon and kind not in parameters):
        raise ValueError(f"unknown policy {name!r}: use one of {_allowed_names()}")
    return policies[kind](_parameter(name, text, *parameters[kind])) if colon else policies[kind]()


def _allowed_names() -> str:
    parameters = lab_table("policies", "PARAMETERS")
    published = [
        f"{name}[:number]" if name in parameters else name for name in published_policies()
    ]
    return ", ".join([OURS, *published, "or module:Class[:number], a policy of your own"]) + (
        "" if published else f"; published methods are in {WHERE}"
    )


def _missing_members(found: type) -> list[str]:
    """Return the members that a class lacks to be a policy."""
    lacking = [
        name
        for name in ("plan", "cut", "learn", "end", "state")
        if not callable(getattr(found, name, None))
    ]
    if issubclass(found, Policy):
        return ["plan"] if found.plan is Policy.plan else []
    return [*lacking, "the base class smartspec.control.Policy, which has all of these but plan"]


def _fixed(name: str, length: int, max_draft_tokens: int | None) -> Fixed:
    _check_length(name, length, max_draft_tokens)
    return Fixed(length)


def _lengths(name: str, text: str, max_draft_tokens: int | None) -> tuple[int, ...]:
    """Return the allowed lengths of uniform:1,3,5."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(
            f"policy {name!r}: after the colon name lengths to choose from, for example "
            "uniform:1,3,5"
        )
    for part in parts:
        _check_length(name, int(part), max_draft_tokens)
    return tuple(sorted({int(part) for part in parts}))


def _check_length(name: str, length: int, max_draft_tokens: int | None) -> None:
    if max_draft_tokens is not None and length > max_draft_tokens:
        raise ValueError(
            f"policy {name!r} needs more than the {max_draft_tokens} draft tokens allowed per "
            "request"
        )


def _parameter(
    name: str, text: str, number: type, least: float, largest: float, *suffix: str
) -> float | str:
    """Return the number in a policy's name, or the path of a profiling run. ValueError names the
    allowed values."""
    if suffix and text.endswith(suffix):
        return text
    try:
        value = number(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= largest:
        what = "whole number" if number is int else "number"
        or_file = f", the {suffix[0]} file of a profiling run" if suffix else ""
        raise ValueError(
            f"policy {name!r}: after the colon use a {what} from {least} to {largest}{or_file}, or "
            "leave it out"
        )
    return value
