"""Records that a host (engine, simulator, plugin) and the controller exchange.

Arrays are aligned by row: row i is the i-th decoding request of the step. A decoding request feeds
exactly one ordinary token in this step and may carry draft tokens after it. R is the number of
rows.

Values that only some policies need are in extras, by name, where a host has them:

    BatchView.extras["tpot_targets"]  float [R], wanted seconds per output token (inf: none)
    Plan.extras["chances"]            float [depth, rank], the chance of the child of each rank, the
                                      likeliest first. Trees are built from it instead of their
                                      drafter's confidence, so that all rows of a size get trees of
                                      the same shape.
    Outcome.extras["divergence"]      float [R, K], divergence of draft and target at each verified
                                      position in nats, NaN elsewhere: Kullback-Leibler where both
                                      distributions are known, else the part that is known (for a
                                      model-free draft -log of the target's chance of the token)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

UNLIMITED = 2**31 - 1
# a node's ancestors, the newest token and itself included, are the bits of one machine word
MAX_TREE_NODES = 63

# A stop rule is a function (depth, rows, confidence, entropy) -> bool [n], True where a row ends
# its draft now. A host calls it after every pass of a drafter that makes one pass per depth. All
# rows of a call have the same drafter.
#     depth       the number of the pass, from 0
#     rows        int [n], the rows that took part in the pass
#     confidence  float [n], of the tokens of this pass, as in Drafted
#     entropy     float [n], in nats, of the distributions that these tokens were drawn from
# For a tree that is wider than a chain, a pass is fed several nodes. There, confidence is the
# chance that one of the nodes of the next pass is right, given that one of the nodes before was
# right. Its product over the passes is the probability of the beam. Entropy is that of the
# distribution after the likeliest node.
# The rule ends a draft after a token that is kept, so it does not bias the output.
StopRule = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class DrafterSpec:
    """The fixed properties of a drafter. Its number is its place in the tuple of drafters of host
    and controller."""

    name: str
    # True: it drafts after the plan in passes of a model, one per depth; the latency model has a
    # cost curve for them. False: it is model-free. Its drafts cost nothing and exist before the
    # plan.
    has_passes: bool = False
    # The least match length of each of its pools, ascending. Acceptance is learned separately for
    # each pool.
    match_lengths: tuple[int, ...] = (0,)
    # a pass can be fed several nodes of a draft, so a plan may want trees (see Plan)
    makes_trees: bool = False
    # Where not 0, one pass makes the whole draft, at most so many tokens deep. Each token is an
    # entry of that pass.
    one_pass_depth: int = 0
    # Where not 0, a pass reads at most so many tokens of a request's context. It takes no longer
    # after longer texts.
    context_limit: int = 0
    # Passes that run in every step, for any plan. Only a host that drafts after the target's pass,
    # for the next step, has them. Their time is counted as the target's.
    kept_passes: int = 0


@dataclass(frozen=True)
class DrafterView:
    """The drafts that one drafter can make in a step, known before the plan. Columns left out are
    zeros."""

    # int [R], of the longest draft it can make; of a model-free drafter, of the draft it has found
    lengths: np.ndarray
    # int [R], tokens at the end of the text that a model-free drafter found elsewhere. More make a
    # draft more reliable.
    match_lengths: np.ndarray = None  # type: ignore[assignment]
    # int [R], committed tokens that its KV lacks, without the newest one. A draft begins with their
    # prefill.
    lag: np.ndarray = None  # type: ignore[assignment]
    # float [R, K], as in Drafted; may be known where drafts exist already
    confidence: np.ndarray | None = None
    parents: np.ndarray | None = None  # int [R, K], the same

    def __post_init__(self):
        for name in ("match_lengths", "lag"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros(len(self.lengths), dtype=np.int64))


# A function that finds the drafts of one drafter. The search takes time, so the controller decides
# whether it is made. The function is called once a step. With True it searches. With False it
# returns only the drafts that are known at no cost, most often none.
DrafterQuery = Callable[[bool], DrafterView]


@dataclass(frozen=True)
class BatchView:
    """The state of a step before the controller decides: numbers that the host has at no cost."""

    request_ids: np.ndarray  # int [R], unique for the life of the engine
    context_tokens: np.ndarray  # int [R], tokens in the target's KV
    # int [R], most draft tokens the row may carry (remaining output, context, KV)
    row_caps: np.ndarray
    drafters: tuple[DrafterView, ...] = ()  # the drafts that each drafter can make, by its number
    num_prefills: int = 0  # requests that are still in prefill
    prefill_tokens: int = 0  # tokens that these requests feed in this step
    prefill_context_tokens: int = 0  # the sum of their contexts at the end of the step
    # the sum, over the prefill tokens, of the tokens that each attends to
    prefill_attended_tokens: float = 0.0
    # most draft tokens of the whole step (free KV, token limit of the engine)
    draft_token_budget: int = UNLIMITED
    num_waiting: int = 0  # requests that wait and will find a place as soon as they are prefilled
    now: float = 0.0  # seconds on the host's clock when the step began
    # Options of the requests. Without them all requests are equal.
    weights: np.ndarray = None  # type: ignore[assignment]  # float [R], >= 0, the worth of a token
    class_ids: np.ndarray = None  # type: ignore[assignment]  # int [R], the workload class, 0 where none is named
    # given in place of drafters: one function for each, which finds its drafts
    queries: tuple[DrafterQuery, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)  # see the top of this file

    def __post_init__(self):
        defaults = {"weights": (1.0, float), "class_ids": (0, np.int64)}
        for name, (value, dtype) in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(self.num_rows, value, dtype=dtype))

    @cached_property
    def num_rows(self) -> int:
        """The number of decoding requests, R."""
        return len(self.request_ids)

    def queried(self, is_queried: bool) -> "BatchView":
        """Return the same step with the drafts of all drafters. If they are not queried, only with
        those that cost nothing."""
        if not self.queries:
            return self
        return with_fields(
            self, drafters=tuple([query(is_queried) for query in self.queries]), queries=()
        )

    def without_prefill(self) -> "BatchView":
        """Return the same requests in a step of their own."""
        return replace(
            self,
            num_prefills=0,
            prefill_tokens=0,
            prefill_context_tokens=0,
            prefill_attended_tokens=0.0,
        )

    @cached_property
    def total_context_tokens(self) -> int:
        """The number of tokens in the KV of all decoding requests."""
        return sum(self.context_tokens.tolist())

    @cached_property
    def has_drafts(self) -> bool:
        """True if any drafter can draft in any row."""
        return any([any(drafter.lengths.tolist()) for drafter in self.drafters])

    @cached_property
    def draft_lengths(self) -> np.ndarray:
        """The longest draft by drafter and row: int [D, R]."""
        return self._by_drafter("lengths")

    @cached_property
    def match_lengths(self) -> np.ndarray:
        """The match lengths by drafter and row: int [D, R]."""
        return self._by_drafter("match_lengths")

    @cached_property
    def draft_lags(self) -> np.ndarray:
        """The lag of the draft KV by drafter and row: int [D, R]."""
        return self._by_drafter("lag")

    def with_lags_up_to(self, most: int) -> "BatchView":
        """Return the same step with draft KV that lags by at most so many tokens."""
        drafters = (replace(d, lag=np.minimum(d.lag, most)) for d in self.drafters)
        return replace(self, drafters=tuple(drafters))

    @property
    def ordinary_tokens(self) -> int:
        """The number of tokens that the target is fed in this step besides draft tokens."""
        return self.num_rows + self.prefill_tokens

    def _by_drafter(self, name: str) -> np.ndarray:
        columns = [getattr(drafter, name) for drafter in self.drafters]
        return np.array(columns, dtype=np.int64).reshape(len(columns), self.num_rows)


@dataclass(frozen=True)
class Plan:
    """A decision about one step: the drafts to make, and what is needed to cut them and to learn
    from the outcome.

    With width 1, drafts made in passes are chains, and each node takes a pass. Drafters that make
    trees can make wider drafts: depths[i] passes propose nodes, and the best lengths[i] of these
    nodes are the draft. For a drafter that needs only one pass (DrafterSpec.one_pass_depth),
    depths[i] is the number of entries of that pass. Drafters without passes, and those that make no
    trees, use lengths alone.
    """

    lengths: np.ndarray  # int [R], nodes of each draft
    # int [R], number of the drafter that makes it, -1 where none does (its length is 0)
    drafter: np.ndarray
    stop: StopRule | None = None  # may end drafts early that are made in passes
    depths: np.ndarray | None = None  # int [R], passes of each draft that is wider than a chain
    # most nodes of a row that a pass after the first is fed, and most children of a node
    width: int = 1
    extras: Mapping[str, Any] = field(default_factory=dict)  # see the top of this file
    # Why the plan is not the one of the policy's rule (exploration, an overdrawn budget), for
    # people. None if it is.
    reason: str | None = None
    # Values that the policy needs again to cut the drafts and to learn, such as prices. All are
    # known before drafting.
    settled: Any = None
    # The controller adds the rest.
    view: BatchView | None = None  # the step that the decision is about, None where it was refused
    queried: bool = True  # drafters were queried for drafts

    @property
    def passes(self) -> np.ndarray:
        """The passes that each draft takes if its drafter drafts in passes: int [R]."""
        return self.lengths if self.depths is None else np.minimum(self.depths, self.lengths)

    def lengths_of(self, drafter: int) -> np.ndarray:
        """Return the lengths of the drafts that this drafter makes: int [R], 0 elsewhere."""
        return np.where(self.drafter == drafter, self.lengths, 0)


@dataclass(frozen=True)
class Drafted:
    """The drafts that were made.

    A draft is a tree of tokens. In node order the probability of reaching a node never increases,
    and a parent stands before its child. So for every k the first k nodes are a connected subtree,
    and a length means the same for chains and trees. K is the most nodes of a draft.
    """

    lengths: np.ndarray  # int [R], at most those of the plan
    # float [R, K], the largest probability of the distribution that a token was drawn from. NaN
    # where the drafter has none, None if no drafter has any. It is known before the token is drawn.
    # So a cut by it is lossless even for sampled drafts; a cut by the probability of the drawn
    # token would not be. For a deterministic draft it may be any estimate of the chance of a token,
    # given that its parent is accepted.
    confidence: np.ndarray | None = None
    # int [R, K], the node that each node follows, -1: the text; None: all are chains
    parents: np.ndarray | None = None


@dataclass(frozen=True)
class StepSeconds:
    """The measured wall time of the parts of one step, in seconds."""

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
    """Off-policy feedback: draft tokens of one drafter that were not verified, but can be compared
    with the target's.

    A model-free drafter has one where a draft was cut and the target's token is known there: the
    first token that was not verified. A draft model has them in a draft prefill: its guesses of the
    tokens that it is fed. They count as tests of its first position.
    """

    position: np.ndarray  # int [R], the position in a draft that they are about, from 0
    tested: np.ndarray  # int [R], tokens that were compared
    matched: np.ndarray  # int [R], those of them that agreed

    def keep_known(self, num_tokens: np.ndarray) -> "FreeTests":
        """Return these tests without those of positions after so many tokens (int [R]) of each
        row."""
        if not self.tested.any():
            return self
        is_known = self.position < num_tokens
        return FreeTests(self.position, self.tested * is_known, self.matched * is_known)


@dataclass(frozen=True)
class Outcome:
    """The results of a step, for learning.

    For trees, tested and accepted count depths. accepted is the number of tokens of the path that
    was accepted. tested is the number of depths at which there was a token to compare.
    """

    view: BatchView
    plan: Plan  # the part of the plan that was carried out, where a host had no room for all of it
    drafted: np.ndarray  # int [R], draft tokens that existed
    verified: np.ndarray  # int [R], those of them that were fed to the target
    # int [R], positions that were really compared. A token that a stop rule dropped later is not
    # counted.
    tested: np.ndarray
    accepted: np.ndarray  # int [R], verified tokens that were accepted
    # tokens that the requests of the step were given, first tokens after a prefill included
    num_emitted: int
    seconds: StepSeconds
    confidence: np.ndarray | None = None  # as in Drafted
    free_tests: tuple[FreeTests, ...] = ()  # by drafter; empty where the host has none
    parents: np.ndarray | None = None  # as in Drafted
    # int [R, K], of trees: 1 an accepted node, 0 a rejected, -1 one not compared
    node_tests: np.ndarray | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)  # see the top of this file

    @property
    def num_fed_tokens(self) -> int:
        """The number of tokens that the target was fed."""
        return self.view.ordinary_tokens + sum(self.verified.tolist())

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
        """Return the outcome of drafts of which so many tokens were verified and accepted: int [R]
        each.

        more: fields that the host knows better than the defaults. By default a draft is compared up
        to its first rejected token, and each request keeps its accepted tokens and one more."""
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
        """Return the plan as it was carried out. A stop rule may have ended drafts early, and trees
        end when they cannot become better."""
        plan, depths = self.plan, None
        if plan.depths is None and self.drafted.tolist() == plan.lengths.tolist():
            return plan
        if plan.width > 1 and self.parents is not None:
            is_there = np.arange(self.parents.shape[1]) < self.drafted[:, None]
            depths = np.where(is_there, depths_of(self.parents), 0).max(axis=1)
        return with_fields(plan, lengths=self.drafted, depths=depths)


def with_fields(record: T, **fields: Any) -> T:
    """Return a copy of the record with other values of these fields, as dataclasses.replace in a
    tenth of the time.

    Nothing is checked. Cached properties keep their values, so they must not depend on these
    fields."""
    changed = object.__new__(type(record))
    changed.__dict__.update(record.__dict__, **fields)
    return changed


def depths_of(parents: np.ndarray) -> np.ndarray:
    """Return the depth of each node of trees, 1 for those that follow the text: int [R, K].
    parents: as in Drafted."""
    rows, depths = (
        np.arange(len(parents)),
        np.zeros((len(parents), parents.shape[1] + 1), dtype=np.int64),
    )
    for node in range(parents.shape[1]):
        depths[:, node + 1] = depths[rows, parents[:, node] + 1] + 1
    return depths[:, 1:]


def of_drafter(values: np.ndarray, drafter: np.ndarray) -> np.ndarray:
    """Return values[drafter[i], i] of every row i: [R, ...] of values [D, R, ...].

    Rows without a drafter (-1) get the first drafter's. Where there are no drafters, all are
    zeros."""
    if len(values) < 2:
        return values[0] if len(values) else np.zeros(values.shape[1:], dtype=values.dtype)
    return values[np.maximum(drafter, 0), np.arange(len(drafter))]
