"""Every value of the goodput policy that was chosen, not derived, by component. An ablation turns one off."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BudgetSettings:
    """The values of the budget and of explorations."""

    # The share of step time that may be lost against plain decoding. 0: drafters are queried in every step, nothing is
    # explored and nothing is distrusted.
    share: float = 0.003
    first_spacing: int = 16  # steps at a batch size between its first two explorations; the number then doubles
    longest_spacing: int = 512  # steps between two explorations at most
    good_acceptance: float = 0.8  # the acceptance that explorations assume to be possible
    # Speculative steps that measured goodput is compared over. Where it speaks against drafts, they pause for half of
    # memory, and twice as long every further time, up to 16 times memory.
    memory: int = 64
    tolerance: float = 0.02  # a loss below this share of time is noise of the comparison
    significance: float = 2.0  # standard errors by which plain decoding must lead

    @property
    def least_steps(self) -> float:
        """The number of compared steps that is enough to decide."""
        return self.memory / 3


@dataclass(frozen=True)
class PrefillPriceSettings:
    """The values of the price of time in mixed steps."""

    share_memory: float = 256.0  # steps that the share of steps without prefill is learned over
    open_wandering: float = 0.2  # wandering of the number of requests above which arrivals are open
    wandering_rate: float = 1 / 16  # the rate of learning the wandering, per reading


@dataclass(frozen=True)
class DraftPrefillSettings:
    """The values of the price of draft prefill."""

    is_priced: bool = True  # draft prefill has to pay; if False, each row that may draft begins
    max_steps: float = 160.0  # most steps that may pay it back, because loads change
    prior_tokens: float = 160.0  # expected tokens of an answer before any has ended
    prior_requests: float = 4.0  # ended requests that this prior counts as
    memory: float = 128.0  # ended requests that count


@dataclass(frozen=True)
class GoodputSettings:
    """The values of the goodput policy and of its components."""

    fairness: float = 0.5  # with a draft model, see policy.fair_weights; 0: tokens count alike
    uses_confidence: bool = True  # drafts end early and are cut by confidence
    prices_mixed_steps: bool = True  # time in mixed steps has its shadow price; if False, their tokens per second count
    projected_batch: float = 3.0  # largest size of the projected batch (see prices), in requests under way
    widths: tuple[int, ...] = (1, 4)  # of drafts made in passes, see records.Plan; the best of these is taken
    prefill_price: PrefillPriceSettings = field(default_factory=PrefillPriceSettings)
    draft_prefill: DraftPrefillSettings = field(default_factory=DraftPrefillSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
