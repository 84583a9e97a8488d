"""Every value of the goodput policy that was chosen and not derived, by component; an ablation turns one off."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExplorationSettings:
    """share: of step time that may be spent on steps that are not believed to be best; 0 turns exploration off.
    first_spacing, longest_spacing: steps at a batch size between two of them, doubling from one to the other. hopes:
    by how much log-odds of acceptance may be better than believed (0.5 becomes 0.67, 0.8, 0.94); good_acceptance: what
    acceptance may be after all where even that makes no drafts worth their price."""

    share: float = 0.003
    first_spacing: int = 16
    longest_spacing: int = 512
    hopes: tuple[float, ...] = (0.7, 1.4, 2.8)
    good_acceptance: float = 0.8


@dataclass(frozen=True)
class GuardSettings:
    """memory: speculative steps that count; a third of it says enough, and drafts pause for half of it after a trip,
    twice as long with every further one, up to 16 times memory. tolerance: a loss below it is noise of the comparison.
    significance: standard errors by which plain decoding must lead."""

    is_on: bool = True
    memory: int = 64
    tolerance: float = 0.02
    significance: float = 2.0


@dataclass(frozen=True)
class PrefillPriceSettings:
    """is_on: whether closed loops are told from open ones; arrivals count as open otherwise. share_memory: steps that
    the share of steps without prefill is learned over. open_wandering: of the number of requests, above which arrivals
    are open; wandering_rate: of learning it, per look."""

    is_on: bool = True
    share_memory: float = 256.0
    open_wandering: float = 0.2
    wandering_rate: float = 1 / 16


@dataclass(frozen=True)
class DraftPrefillSettings:
    """is_priced: whether draft prefill has to pay; whoever may draft begins otherwise. payback: how many times what it
    costs it must be expected to bring: lifetime and acceptance are guesses, the price is certain. max_steps: farthest
    ahead that it is paid back over: loads change. ordinary_lag: tokens a row that drafts in every step lacks: no
    investment. prior_tokens, prior_requests: tokens of an answer believed before any has ended, and how many ended ones
    that is worth; memory: ended requests that count."""

    is_priced: bool = True
    payback: float = 2.5
    max_steps: float = 160.0
    ordinary_lag: int = 4
    prior_tokens: float = 160.0
    prior_requests: float = 4.0
    memory: float = 128.0


@dataclass(frozen=True)
class HysteresisSettings:
    """Of lengths that hold for a whole step. rate: of learning, per change. first_lasting: steps that a length is
    believed to last at first."""

    rate: float = 0.25
    first_lasting: float = 16.0


@dataclass(frozen=True)
class GoodputSettings:
    """min_gain: a smaller predicted gain is not taken: the best of many noisy predictions is biased upwards, while
    plain decoding is a single one, measured best. fairness: with a draft model, see planner (2 is the harmonic mean, 0
    the arithmetic one). uses_confidence: drafts end early and are cut by it. prices_mixed_steps: time beside prefill
    has its shadow price, else tokens per second of the long step decide. projected_batch: of how many times the
    requests under way, at most, those that wait are taken to decode together. widths: of drafts made in passes, see
    records.Plan; of those the best is taken."""

    min_gain: float = 0.01
    fairness: float = 2.0
    uses_confidence: bool = True
    prices_mixed_steps: bool = True
    projected_batch: float = 3.0
    widths: tuple[int, ...] = (1, 4)
    prefill_price: PrefillPriceSettings = field(default_factory=PrefillPriceSettings)
    draft_prefill: DraftPrefillSettings = field(default_factory=DraftPrefillSettings)
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    hysteresis: HysteresisSettings = field(default_factory=HysteresisSettings)
