"""Between which numbers the settings of a scenario lie.

What is outside is a slip of the keyboard: far beyond anything that exists, and it would overflow or fill the memory.
"""

from collections.abc import Mapping

from smartspec.sim.world.traffic import MAX_REQUESTS

_FACTORS = (1e-6, 1_000_000)
_LIMITS = {
    "tensor_parallel": (1, 1024),
    "draft_tensor_parallel": (1, 1024),
    "sibling_share": (0, 1),
    "found_share": (0, 1),
    "max_draft_tokens": (1, 1000),
    "max_batch": (1, 100_000),
    "max_batched_tokens": (1, 10**9),
    "kv_tokens": (16, 10**12),  # one block
    "batch": (1, MAX_REQUESTS),
    "num_requests": (1, MAX_REQUESTS),
    "seconds": (1e-6, 10**9),
    "prompt_tokens": (1, 1_000_000),
    "output_tokens": (1, 1_000_000),
    "replicas": (1, 1000),
    "host_seconds": (0, 10_000),
    "jitter": (0, 10),
}


def check_limits(settings: Mapping[str, object]) -> None:
    """ValueError naming the setting that is too small, too large, or no number at all; None is none of these."""
    for name, (least, largest) in _LIMITS.items():
        _check(name, settings[name], least, largest)
    if settings["profile"] != "no-context":
        _check("profile", settings["profile"], *_FACTORS)
    for second, factor in settings["throttle"]:
        _check("the second of throttle", second, 0, 10**9)
        _check("the factor of throttle", factor, *_FACTORS)


def _check(name: str, value: float | None, least: float, largest: float) -> None:
    if value is not None and not least <= value <= largest:  # as it is for a NaN
        raise ValueError(f"{name} must be at least {least} and at most {largest}, got {value}")
