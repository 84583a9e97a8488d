"""Where a request comes from: with whom it shares the engine, and with whom what was computed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """client: whoever shares the engine with others, a key or an address. share: its share of the engine, against those
    of others. priority: requests of one client run in this order, lower first. cache_salt: cached prefixes, and what
    drafters remember, are shared by requests of the same salt alone.
    """

    client: str = ""
    share: float = 1.0
    priority: int = 0
    cache_salt: str = ""


UNKNOWN_ORIGIN = Origin()
