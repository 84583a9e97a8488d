"""The controller's own policies by name: goodput, off, fixed:4, uniform:1,3,5. All others:
core.policy_names."""

from collections.abc import Callable

from smartspec.control.fixed import Fixed, Off
from smartspec.control.goodput.policy import Goodput
from smartspec.control.policy import Policy
from smartspec.control.uniform import Uniform

POLICIES: dict[str, Callable[[], Policy]] = {"goodput": Goodput, "off": Off}
KINDS = (*POLICIES, "fixed", "uniform")
OURS = (
    "goodput, off, fixed:K (K a number of draft tokens, for example fixed:4), uniform:K,K,... "
    "(goodput with one of these lengths for all requests of a step)"
)


def our_policy(name: str, max_draft_tokens: int | None = None) -> Policy | None:
    """Return a new policy of that name, None where it is none of ours. ValueError if a length is
    none, or above max_draft_tokens."""
    kind, _, text = name.partition(":")
    if kind == "fixed" and _is_number(text):
        return Fixed(*_lengths(name, text, max_draft_tokens))
    if kind == "uniform":
        if not all(_is_number(part) and int(part) for part in text.split(",")):
            raise ValueError(
                f"policy {name!r}: after the colon name lengths to choose from, for example "
                "uniform:1,3,5"
            )
        return Uniform(_lengths(name, text, max_draft_tokens))
    return POLICIES[name]() if name in POLICIES else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _lengths(name: str, text: str, max_draft_tokens: int | None) -> tuple[int, ...]:
    lengths = tuple(map(int, text.split(",")))
    if max_draft_tokens is not None and max(lengths) > max_draft_tokens:
        raise ValueError(
            f"policy {name!r} needs more than the {max_draft_tokens} draft tokens allowed per "
            "request"
        )
    return lengths
