"""Policies by name, as people write them: the controller's own, module:Class, and published ones,
from the repository's lab (lab.policies)."""

from collections.abc import Callable
from typing import Any

from smartspec.control import Policy
from smartspec.control.policy_names import KINDS, OURS, POLICIES, our_policy
from smartspec.core.lab_tables import WHERE, lab_table
from smartspec.core.own_class import is_own_class, load_class, make_own

FILE = ".json"  # the path of a profiling run, which may stand for a parameter
# these need the ground truth, which the simulator alone has
TOLD = ("perfect-estimates", "perfect-outcomes")


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
    if (ours := our_policy(name, max_draft_tokens)) is not None:
        return ours
    policies, parameters = published_policies(), lab_table("policies", "PARAMETERS")
    if is_own_class(name) and kind not in (*KINDS, *policies):
        return make_own(name, "policy", load_class(name, "policy", _missing_members))
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


def _parameter(
    name: str, text: str, number: type, least: float, largest: float, *suffix: str
) -> Any:
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
