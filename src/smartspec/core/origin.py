"""Where a request comes from: which requests share the engine with it, and which share cached prefixes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """client: a user of the engine, named by key or address. share: its share of the engine, against those
    of others. priority: requests of one client run in this order, lower first. cache_salt: cached prefixes, and what
    drafters remember, are shared by requests of the same salt alone.
    """

    client: str = ""
    share: float = 1.0
    priority: int = 0
    cache_salt: str = ""


UNKNOWN_ORIGIN = Origin()
