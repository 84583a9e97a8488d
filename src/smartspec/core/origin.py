"""The origin of a request: which requests share the engine with it, and which share cached
prefixes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """The origin of a request."""

    client: str = ""  # a user of the engine, named by key or address
    share: float = 1.0  # its share of the engine, against those of others
    priority: int = 0  # requests of one client run in this order, lower first
    # cached prefixes, and what drafters remember, are shared by requests of the same salt alone. It
    # is the client's API key, then a space and what the request says; without a key it begins with
    # the space, and "" is of requests that say nothing.
    cache_salt: str = ""


UNKNOWN_ORIGIN = Origin()


def key_of(cache_salt: str) -> str:
    """The API key that a salt belongs to, "" for none. What is remembered of its salts counts
    against its bounds."""
    return cache_salt.partition(" ")[0]
