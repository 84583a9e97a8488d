"""Records that cross the border between a host (engine, simulator, plugin) and the controller.

Arrays are aligned by row: row i is the i-th decoding request of the step. A decoding request is one that feeds
exactly one ordinary token in this step and may carry draft tokens after it.

What only some policies look at is in extras, by name, where a host has it:

    BatchView.extras["tpot_targets"]  float [R], wanted seconds per output token (inf: none)
    Plan.extras["chances"]            float [depth, rank], what trees take the child of each rank for, the likeliest
                                      first, in place of what their drafter believes: their shape is then the same for
                                      all rows of a size
    Outcome.extras["divergence"]      float [R, K], divergence of draft and target at each verified position in nats,
                                      NaN elsewhere: Kullback-Leibler where both distributions are known, else what is
                                      known of it (for a model-free draft -log of the target's chance of the token)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

UNLIMITED = 2**31 - 1
MAX_TREE_NODES = 63  # a node's ancestors, the newest token and itself included, are the bits of one machine word

# Called after every pass of a drafter with one pass per depth: (depth, rows, confidence, entropy) -> bool [n], True
# where a row drafts no more. depth counts from 0; rows int [n] are those that took part; confidence and entropy (nats),
# float [n], describe the distributions their tokens of this pass were drawn from. Of a tree that is wider than a chain,
# confidence is the chance that one of the nodes that the next pass would be fed is right, given that one of those
# before was (so that its product over the passes is the probability of the beam), and entropy that after the likeliest
# node. Stopping after a token that is kept biases nothing. All rows of a call draft with the same drafter.
StopRule = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class DrafterSpec:
    """What is fixed about a drafter; hosts and controller name it by its number, its place in their tuple of drafters.

    has_passes: its drafts are made after the plan by passes of a model, one per depth, for which the latency model has
    a cost curve. Otherwise it is model-free: its drafts cost nothing and exist before the plan. match_lengths: least
    match length of each of its pools, ascending; acceptance is learned separately per pool. makes_trees: a plan may
    want it for trees (see Plan), as a pass can be fed several nodes of a draft. one_pass_depth: where not 0, one pass
    makes the whole draft, up to so many tokens deep: another token is another entry of that pass. context_limit: where
    not 0, a pass reads at most so many tokens of a request's context: it takes no longer after longer texts.
    kept_passes: of a host that drafts after the target's pass, for the next step: those that run in every step,
    whatever is planned. Their time is counted as the target's.
    """

    name: str
    has_passes: bool = False
    match_lengths: tuple[int, ...] = (0,)
    makes_trees: bool = False
    one_pass_depth: int = 0
    context_limit: int = 0
    kept_passes: int = 0


@dataclass(frozen=True)
class DrafterView:
    """What one drafter can draft in a step, known before the plan; int [R] each, zeros where left out.

    lengths: the longest draft it can make: of a model-free drafter, the draft it has found. match_lengths: how much of
    the text's end it found elsewhere, the strength of a model-free draft. lag: committed tokens that its KV lacks, the
    newest one excluded: a draft begins with their prefill.

    Of drafts that exist, confidence and parents may be known too: float and int [R, K], as in Drafted.
    """

    lengths: np.ndarray
    match_lengths: np.ndarray = None  # type: ignore[assignment]
    lag: np.ndarray = None  # type: ignore[assignment]
    confidence: np.ndarray | None = None
    parents: np.ndarray | None = None

    def __post_init__(self):
        for name in ("match_lengths", "lag"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros(len(self.lengths), dtype=np.int64))


# What one drafter can draft, found only when the controller queries it, because the search for drafts takes time. It is
# called once: with True, or with False where the drafter is not queried. Then it returns what is known at no cost, most
# often nothing.
DrafterQuery = Callable[[bool], DrafterView]


@dataclass(frozen=True)
class BatchView:
    """What a controller may know about a step before it decides: numbers that the host has at no cost.

    request_ids: int [R], unique for the life of the engine. context_tokens: int [R], tokens in the target's KV.
    max_draft_tokens: int [R], most draft tokens the row may carry (remaining output, context, KV). drafters: what each
    drafter can draft, by its number. queries: given instead of drafters, functions that find this. num_prefills,
    prefill_tokens: requests that are still in prefill and the tokens they feed. prefill_context_tokens: sum of their
    contexts at the end of the step; prefill_attended_tokens: sum over fed tokens of what each attends to.
    draft_token_budget: most draft tokens of the whole step (free KV, token limit of the engine). num_waiting: requests
    that wait and will find a place as soon as they are prefilled. now: seconds on the host's clock when the step began.

    Request options, by row; without them all requests are equal: weights float [R], >= 0, worth of a token; class_ids
    int [R], workload class (0: none named).
    """

    request_ids: np.ndarray
    context_tokens: np.ndarray
    max_draft_tokens: np.ndarray
    drafters: tuple[DrafterView, ...] = ()
    num_prefills: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_attended_tokens: float = 0.0
    draft_token_budget: int = UNLIMITED
    num_waiting: int = 0
    now: float = 0.0
    weights: np.ndarray = None  # type: ignore[assignment]
    class_ids: np.ndarray = None  # type: ignore[assignment]
    queries: tuple[DrafterQuery, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        defaults = {"weights": (1.0, float), "class_ids": (0, np.int64)}
        for name, (value, dtype) in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(self.num_rows, value, dtype=dtype))

    @cached_property
    def num_rows(self) -> int:
        return len(self.request_ids)

    def queried(self, is_queried: bool) -> "BatchView":
        """The same step with the drafts of all drafters; only with those that cost nothing if they are not queried."""
        if not self.queries:
            return self
        return with_fields(self, drafters=tuple([query(is_queried) for query in self.queries]), queries=())

    def without_prefill(self) -> "BatchView":
        """The same requests in a step of their own."""
        return replace(self, num_prefills=0, prefill_tokens=0, prefill_context_tokens=0, prefill_attended_tokens=0.0)

    @cached_property
    def total_context_tokens(self) -> int:
        """Tokens in the KV of all decoding requests."""
        return sum(self.context_tokens.tolist())

    @cached_property
    def has_drafts(self) -> bool:
        """Whether any drafter can draft in any row."""
        return any([any(drafter.lengths.tolist()) for drafter in self.drafters])

    @cached_property
    def draft_lengths(self) -> np.ndarray:
        """Longest draft by drafter and row: int [D, R]."""
        return self._by_drafter("lengths")

    @cached_property
    def match_lengths(self) -> np.ndarray:
        """int [D, R]."""
        return self._by_drafter("match_lengths")

    @cached_property
    def draft_lags(self) -> np.ndarray:
        """int [D, R]."""
        return self._by_drafter("lag")

    def with_lags_up_to(self, most: int) -> "BatchView":
        """The same step with draft KV that lags by at most so many tokens."""
        drafters = (replace(d, lag=np.minimum(d.lag, most)) for d in self.drafters)
        return replace(self, drafters=tuple(drafters))

    @property
    def ordinary_tokens(self) -> int:
        """Tokens the target is fed in this step before any draft token."""
        return self.num_rows + self.prefill_tokens

    def _by_drafter(self, name: str) -> np.ndarray:
        columns = [getattr(drafter, name) for drafter in self.drafters]
        return np.array(columns, dtype=np.int64).reshape(len(columns), self.num_rows)


@dataclass(frozen=True)
class Plan:
    """A decision about one step: what to draft, and what is needed to judge the drafts and to learn from the outcome.

    lengths: int [R], nodes of each draft; drafter: int [R], number of the drafter that makes it, -1
    where none does (its length is 0).

    stop: may end drafts that are made in passes earlier, see StopRule.

    width: most nodes that a later pass is fed for a row, and most children of a node. With 1, drafts made in passes are
    chains, a pass for every node. Wider drafts, of drafters that make trees, take depths[i] passes (int [R]) and are
    the best lengths[i] nodes of all that these propose. Of a drafter that needs one pass (DrafterSpec.one_pass_depth)
    depths[i] are the entries of that. Drafters without passes, and those that make no trees, look at lengths alone.

    reason: for people, why it is not what the policy's rule alone would have chosen (exploration, a budget that is
    overdrawn), None where it is. settled: what its policy needs again to cut the drafts and to learn, such as prices;
    all of it settled before drafting.
    alternatives: the best plans that were considered and not chosen, best first, each with a label; found when called.

    is_whole: whether drafts are verified as far as they are planned, so that there is nothing to cut.

    The controller adds: view, the step as it was decided on, None where it was refused; queried, whether drafters were
    queried for drafts; survival, float [R, K], the chance that the j-th node of each row's draft is reached and
    accepted, by what was known before drafting, None where there is nothing to cut.
    """

    lengths: np.ndarray
    drafter: np.ndarray
    stop: StopRule | None = None
    depths: np.ndarray | None = None
    width: int = 1
    extras: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    settled: Any = None
    is_whole: bool = False
    alternatives: "Callable[[], list[tuple[str, Plan]]]" = list
    view: BatchView | None = None
    queried: bool = True
    survival: np.ndarray | None = None

    @property
    def passes(self) -> np.ndarray:
        """Passes that each draft takes if its drafter drafts in passes: int [R]."""
        return self.lengths if self.depths is None else np.minimum(self.depths, self.lengths)

    def lengths_of(self, drafter: int) -> np.ndarray:
        """Lengths of the drafts that this drafter makes: int [R], 0 elsewhere."""
        return np.where(self.drafter == drafter, self.lengths, 0)


@dataclass(frozen=True)
class Drafted:
    """What was drafted. lengths: int [R], at most those of the plan.

    A draft is a tree of tokens. In node order the probability of reaching a node never increases, and a parent stands
    before its child. So for every k the first k nodes are a connected subtree, and a length means the same for chains
    and trees. K is the most nodes of a draft.

    confidence: float [R, K], largest probability of the distribution a token was drawn from, NaN where the drafter has
    none; None if no drafter has any. It is known before the token is drawn, so a cut by it is lossless even for sampled
    drafts. A cut by the probability of the drawn token itself would not be. For a deterministic draft it may be any
    estimate by the drafter of the chance of a token, given that its parent is accepted.

    parents: int [R, K], the node that each node follows, -1 for the text; None if all drafts are chains.
    """

    lengths: np.ndarray
    confidence: np.ndarray | None = None
    parents: np.ndarray | None = None


@dataclass(frozen=True)
class StepSeconds:
    """Measured wall time of the parts of one step, in seconds."""

    draft: float
    target: float
    host: float

    @property
    def total(self) -> float:
        return self.passes + self.host

    @property
    def passes(self) -> float:
        return self.draft + self.target


@dataclass(frozen=True)
class FreeTests:
    """Off-policy feedback: comparisons of a drafter with the target beside its verified drafts; int [R] each.

    tested tokens at that position of a draft were compared with the target's, matched of them agreed. For a model-free
    draft it is the first token that was not verified, where the target's token there is known. For a draft model it is
    what it would have guessed for tokens of a draft prefill, as tests of its first position.
    """

    position: np.ndarray
    tested: np.ndarray
    matched: np.ndarray

    def known(self, num_tokens: np.ndarray) -> "FreeTests":
        """Without the tests of positions after so many tokens (int [R]) of each row."""
        if not self.tested.any():
            return self
        is_known = self.position < num_tokens
        return FreeTests(self.position, self.tested * is_known, self.matched * is_known)


@dataclass(frozen=True)
class Outcome:
    """What happened in a step, for learning.

    plan: what was left of the plan, where a host had no room for all of it. drafted: int [R] draft tokens that existed.
    verified: int [R] of them fed to the target. accepted: int [R] of the verified ones accepted (what a stop rule later
    dropped is not counted as tested: tested[i] says how many positions were truly compared). confidence: as in Drafted.
    free_tests: by drafter; empty where the host knows of none.

    Where there are trees, tested and accepted count depths: how many tokens of a path were accepted, and how often
    there was a token to compare. parents is then as in Drafted. node_tests, int [R, K], is 1 for each accepted node, 0
    for each rejected one, -1 for each that was not compared.
    """

    view: BatchView
    plan: Plan
    drafted: np.ndarray
    verified: np.ndarray
    tested: np.ndarray
    accepted: np.ndarray
    num_emitted: int
    seconds: StepSeconds
    confidence: np.ndarray | None = None
    free_tests: tuple[FreeTests, ...] = ()
    parents: np.ndarray | None = None
    node_tests: np.ndarray | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        view: BatchView,
        plan: Plan,
        drafted: Drafted,
        verified: np.ndarray,
        accepted: np.ndarray,
        seconds: StepSeconds,
        **more: Any,
    ) -> "Outcome":
        """Of drafts of which so many tokens were verified and accepted: int [R] each. more: columns of which a host
        knows better. By default a draft is compared up to its first rejected token, and each request keeps its accepted
        tokens and one more."""
        columns = {
            "tested": np.minimum(verified, accepted + 1),
            "num_emitted": int(accepted.sum()) + view.num_rows,
            "confidence": drafted.confidence,
            "parents": drafted.parents,
        }
        return cls(
            view=view,
            plan=plan,
            drafted=drafted.lengths,
            verified=verified,
            accepted=accepted,
            seconds=seconds,
            **columns | more,
        )

    def as_drafted(self) -> Plan:
        """The plan as it was carried out: a stop rule may have ended drafts early, and trees end when they cannot
        become better."""
        plan, depths = self.plan, None
        if plan.depths is None and self.drafted.tolist() == plan.lengths.tolist():
            return plan
        if plan.width > 1 and self.parents is not None:
            is_there = np.arange(self.parents.shape[1]) < self.drafted[:, None]
            depths = np.where(is_there, depths_of(self.parents), 0).max(axis=1)
        return with_fields(plan, lengths=self.drafted, depths=depths)


def with_fields(record: T, **fields: Any) -> T:
    """As dataclasses.replace, in a tenth of the time: nothing is checked, and what was computed from the record stays,
    so it must not depend on these fields."""
    changed = object.__new__(type(record))
    changed.__dict__.update(record.__dict__, **fields)
    return changed


def depths_of(parents: np.ndarray) -> np.ndarray:
    """How deep each node of trees lies, 1 for those that follow the text: int [R, K], of parents as in Drafted."""
    rows, depths = np.arange(len(parents)), np.zeros((len(parents), parents.shape[1] + 1), dtype=np.int64)
    for node in range(parents.shape[1]):
        depths[:, node + 1] = depths[rows, parents[:, node] + 1] + 1
    return depths[:, 1:]


def of_drafter(values: np.ndarray, drafter: np.ndarray) -> np.ndarray:
    """values[drafter[i], i] of every row i, [R, ...] of [D, R, ...]; the first drafter's where none drafts (-1), zeros
    where there are no drafters."""
    if len(values) < 2:
        return values[0] if len(values) else np.zeros(values.shape[1:], dtype=values.dtype)
    return values[np.maximum(drafter, 0), np.arange(len(drafter))]
