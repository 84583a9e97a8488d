"""The values of the goodput policy that an ablation turns off or a reader may want to change."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GoodputSettings:
    """What is chosen, not derived."""

    fairness: float = 0.5  # see planning.fair_weights; 0: tokens of all requests count alike
    uses_confidence: bool = True  # drafts end early and are cut by confidence
    # Of drafts made in passes: chains, and trees where these are made.
    widths: tuple[int, ...] = (1, 4)
    share: float = 0.003  # of step time, that queries and trials may lose; 0: neither, and no guard
