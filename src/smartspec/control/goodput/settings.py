"""Every value of the goodput policy that was chosen and not derived, by component; an ablation turns one off."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BudgetSettings:
    """share: of step time that may be lost against plain decoding; 0: drafters are queried in every step, nothing is
    explored and nothing is distrusted. first_spacing, longest_spacing: steps at a batch size between two explorations,
    doubling from one to the other. good_acceptance: what acceptance may be after all, for explorations. memory:
    speculative steps that measured goodput is compared over; a third of it, least_steps, is enough to decide. Where it
    speaks against drafts, they pause for half of memory, and twice as long every further time, up to 16 times memory.
    tolerance: a loss below this share of time is noise of the comparison. significance: standard errors by which plain
    decoding must lead."""

    share: float = 0.003
    first_spacing: int = 16
    longest_spacing: int = 512
    good_acceptance: float = 0.8
    memory: int = 64
    tolerance: float = 0.02
    significance: float = 2.0

    @property
    def least_steps(self) -> float:
        return self.memory / 3


@dataclass(frozen=True)
class PrefillPriceSettings:
    """share_memory: steps that the share of steps without prefill is learned over. open_wandering: of the number of
    requests, above which arrivals are open; wandering_rate: of learning it, per reading."""

    share_memory: float = 256.0
    open_wandering: float = 0.2
    wandering_rate: float = 1 / 16


@dataclass(frozen=True)
class DraftPrefillSettings:
    """is_priced: whether draft prefill has to pay; each row that may draft begins otherwise. max_steps: most steps that
    may pay it back, because loads change. ordinary_lag: tokens that the KV of a row lacks that drafts in every step;
    they are no investment. prior_tokens: expected tokens of an answer before any has ended; prior_requests: ended
    requests that this prior counts as. memory: ended requests that count."""

    is_priced: bool = True
    max_steps: float = 160.0
    ordinary_lag: int = 4
    prior_tokens: float = 160.0
    prior_requests: float = 4.0
    memory: float = 128.0


@dataclass(frozen=True)
class GoodputSettings:
    """fairness: with a draft model, see policy.fair_weights; 0: tokens count alike. uses_confidence: drafts
    end early and are cut by it. prices_mixed_steps: time in mixed steps has its shadow price; otherwise their tokens
    per second decide. projected_batch: largest size of the projected batch (see prices), as a multiple of the requests
    under way. widths: of drafts made in passes, see records.Plan; the best of these is taken."""

    fairness: float = 0.5
    uses_confidence: bool = True
    prices_mixed_steps: bool = True
    projected_batch: float = 3.0
    widths: tuple[int, ...] = (1, 4)
    prefill_price: PrefillPriceSettings = field(default_factory=PrefillPriceSettings)
    draft_prefill: DraftPrefillSettings = field(default_factory=DraftPrefillSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
