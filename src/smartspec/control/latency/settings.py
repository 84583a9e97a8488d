"""Every value of the time model that was chosen and not derived."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LatencySettings:
    """How a profile goes wrong, and how fast a machine changes.

    common_std, single_std: of all profiled coefficients together (another clock rate, a busy machine) and of each by
    itself, relative. attention_tokens: for a profile that measured no cost of context: so many tokens plausibly take as
    long to read as the weights, and attention to them as long as the rest of a token's pass. forgetting: part of the
    way back to that prior in every step; the speed as a whole may then wander by 0.35 % a step, a coefficient by itself
    by 0.08 %. noise: standard deviation of a measurement, relative; first_use_noise: times that for a size that was
    never run (code generation, allocation, cold caches). max_deviations: of an innovation, in standard deviations; its
    influence is bounded there (Huber). change_run: so many beyond that in a row and of one sign are no outliers: the
    machine has changed. host_rate: of learning the host's time, per step.
    """

    common_std: float = 0.7
    single_std: float = 0.15
    attention_tokens: float = 16_384.0
    forgetting: float = 1 / 40_000
    noise: float = 0.03
    first_use_noise: float = 3.0
    max_deviations: float = 2.5
    change_run: int = 3
    host_rate: float = 0.1
