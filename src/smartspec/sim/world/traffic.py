"""The arrivals in a simulation: token counts, workload classes, and either arrival times or a
closed loop."""

from dataclasses import dataclass, replace

import numpy as np

from smartspec.sim.settings import MAX_REQUESTS
from smartspec.workload.arrivals import Trace


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival; arrays are [N]."""

    num_prompt_tokens: np.ndarray
    num_output_tokens: np.ndarray
    class_ids: np.ndarray  # workload class, an index of those of acceptance
    # float, never decreasing; None for a closed loop, in which `concurrency` requests are always
    # under way and the next arrives when one ends
    arrival_seconds: np.ndarray | None = None
    concurrency: int | None = None
    tagged: bool = False  # requests name their class to the engine
    # wanted seconds per output token, which requests have in turn; none without
    tpot_targets: tuple[float, ...] = ()
    ttft_target: float | None = None  # wanted seconds to the first token of each

    def __len__(self) -> int:
        return len(self.num_prompt_tokens)

    def tpot_target(self, index: int) -> float | None:
        return self.tpot_targets[index % len(self.tpot_targets)] if self.tpot_targets else None

    def before(self, seconds: float | None) -> "Traffic":
        """Only what arrives before that; None for everything."""
        if seconds is None:
            return self
        count = int(np.searchsorted(self.arrival_seconds, seconds))
        names = ("num_prompt_tokens", "num_output_tokens", "class_ids", "arrival_seconds")
        return replace(self, **{name: getattr(self, name)[:count] for name in names})


def default_count(rate: float | None, seconds: float | None) -> int:
    """1000 requests, or what arrives at that rate in those seconds and ten standard deviations
    more, to be cut.

    ValueError if that is more than can be simulated.
    """
    if rate is None or seconds is None:
        return 1000
    count = int(rate * seconds + 10 * (rate * seconds) ** 0.5) + 10
    if count > MAX_REQUESTS:
        raise ValueError(
            f"{seconds:g} seconds at rate {rate:g} are more than {MAX_REQUESTS:,} requests: give "
            "fewer seconds, or num_requests"
        )
    return count


def repeated(trace: Trace, num_requests: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt tokens, output tokens and arrivals of the first num_requests of a recording, which
    starts over as often as that takes."""
    lap, row = np.divmod(np.arange(num_requests), len(trace))
    # The gap before a new lap is the recording's mean gap.
    lap_seconds = np.ptp(trace.arrival_seconds) * len(trace) / max(len(trace) - 1, 1)
    arrivals = trace.arrival_seconds[row] + lap * lap_seconds
    return trace.num_prompt_tokens[row], trace.num_output_tokens[row], arrivals


def random_lengths(mean: int, count: int, seed: int, stream: int) -> np.ndarray:
    """Token counts of that mean, int64 [count]: log-normal with a standard deviation of as much, at
    least 1.

    Recorded traffic is skewed like this; the traces themselves are the better choice where they
    fit.
    """
    sigma = np.sqrt(np.log(2.0))
    drawn = np.random.default_rng([seed, stream]).lognormal(
        np.log(mean) - sigma**2 / 2, sigma, count
    )
    return np.maximum(1, np.rint(drawn)).astype(np.int64)
