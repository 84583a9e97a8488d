"""Policies by name, as people write them: goodput, off, fixed:4."""

from smartspec.control.policies.base import Policy
from smartspec.control.policies.goodput import Goodput
from smartspec.control.policies.static import Fixed, Off

ALLOWED = "goodput, off, fixed:K (K a number of draft tokens, for example fixed:4)"


def parse_policy(name: str, max_draft_tokens: int | None = None) -> Policy:
    """A new policy of that name. ValueError if there is none, or if fixed:K asks for more than max_draft_tokens."""
    if name == "goodput":
        return Goodput()
    if name == "off":
        return Off()
    kind, _, length = name.partition(":")
    if kind != "fixed" or not (length.isascii() and length.isdigit()):
        raise ValueError(f"unknown policy {name!r}: use one of {ALLOWED}")
    if max_draft_tokens is not None and int(length) > max_draft_tokens:
        raise ValueError(f"policy {name!r} asks for more than the {max_draft_tokens} draft tokens allowed per request")
    return Fixed(int(length))
