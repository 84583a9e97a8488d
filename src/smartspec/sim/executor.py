"""An executor that computes time and acceptance instead of running kernels.

It takes the place of the live engine's executor; EngineCore, scheduler, blocks and controller are
the real ones. Token ids are dummies, except for the EOS at an answer's end. A request's limit is
max_draft_tokens after that end, so that no view tells where the end is. A draft model's draft ends
with the EOS it draws; a model-free draft or a tree goes on past the end, and those tokens are
rejected.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from smartspec.control import Drafted, DrafterQuery, DrafterSpec, DrafterView, Plan
from smartspec.core.batch import NO_DRAFT, Batch, Draft, StepResult, Verification, chain
from smartspec.core.blocks import PrefixCopy, Trim
from smartspec.core.draft_columns import lengths_of
from smartspec.core.request import Request
from smartspec.sim.simulated_drafter import SimulatedDrafter
from smartspec.sim.world.acceptance import GroundTruthAcceptance, Places
from smartspec.sim.world.step_time import GroundTruthTime
from smartspec.sim.world.trees import SimulatedTrees, right_path

EOS = 2
LOOKUP = DrafterSpec("lookup", match_lengths=(0, 2, 3, 4, 6, 9))
MODEL = DrafterSpec("model", has_passes=True)
HEAD = DrafterSpec("head", has_passes=True, makes_trees=True)


class SimExecutor(SimulatedDrafter):
    """Implements core.engine_core.Executor in virtual time, with at most one drafter.

    drafter: LOOKUP, whose drafts are those that the ground truth finds; MODEL, depth by depth and
    with confidence; HEAD, which makes trees too; or None.
    """

    def __init__(
        self,
        time: GroundTruthTime,
        acceptance: GroundTruthAcceptance,
        *,
        num_slots: int,
        **drafter,
    ):
        super().__init__(time, acceptance, **drafter)
        self._trees: SimulatedTrees | None = None  # of the step, if its plan has trees
        # tokens the draft model has seen, by slot
        self._num_seen = np.zeros(num_slots, dtype=np.int64)
        self._slots = np.zeros(0, dtype=np.int64)
        self._offered: tuple[DrafterView, ...] = ()
        lengths = range(acceptance.max_draft_tokens + 1)
        self._drafts = [chain(np.ones(length, dtype=np.int32)) for length in lengths]
        # by accepted count
        self._verifications = [Verification((1,) * n + (0,), n) for n in lengths]

    def begin_step(self, batch: Batch, now: float) -> tuple[DrafterQuery, ...]:
        """Begin a step; return the query that finds what the drafter can draft."""
        rows = batch.decoding
        self._positions = np.array(
            [r.num_tokens - r.num_prompt_tokens for r in rows], dtype=np.int64
        )
        self._num_left = np.array([self._left_of(r) for r in rows], dtype=np.int64)
        if self._drafter is None:
            return ()
        if self._has_passes:
            self._follow(batch)
        return (partial(self._query, batch),)

    def _query(self, batch: Batch, is_queried: bool) -> DrafterView:
        offered = (
            self._offer(batch)
            if is_queried
            else DrafterView(np.zeros(len(batch.decoding), dtype=np.int64))
        )
        self._offered = (offered,)
        return offered

    def draft(self, batch: Batch, plan: Plan) -> tuple[Draft, ...]:
        """Drafts as planned, which may end early."""
        self._view, self._plan = plan.view, plan
        drafted, self._trees = self._drafts_of(plan.view, plan)
        self._drafted = drafted.lengths
        return self._as_drafts(drafted) if self._trees is None else self._trees.drafts

    def _as_drafts(self, chains: Drafted) -> tuple[Draft, ...]:
        lengths = chains.lengths.tolist()
        if chains.confidence is None:
            return tuple([self._drafts[k] for k in lengths])
        rows = zip(lengths, chains.confidence, strict=True)
        return tuple(
            [
                chain(self._drafts[k].token_ids, confidence=row[:k]) if k else NO_DRAFT
                for k, row in rows
            ]
        )

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        """Return which draft tokens were accepted, and how long it took."""
        view, trees = self._view, self._trees
        decoding, verified, fed = self._decode(drafts)
        chunks = zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        num_fed = None if trees is None else trees.num_fed
        return StepResult(
            decoding=tuple(decoding),
            prefill=tuple(
                [
                    self._verification(0, self._left_of(r))
                    if n == r.num_uncomputed_tokens
                    else None
                    for r, n in chunks
                ]
            ),
            seconds=self.time.step_seconds(
                view, self._plan, self._drafted, fed, self._noise, num_fed
            ),
            extras={} if trees else {"divergence": self._divergence(view, verified)},
            free_tests=self._free_tests(self._offered, verified),
        )

    def _decode(
        self, drafts: tuple[Draft, ...]
    ) -> tuple[list[Verification], np.ndarray, np.ndarray]:
        """The tokens of each row; and, int [R] each, the numbers of its draft tokens verified and
        fed to the target."""
        trees, num_left = self._trees, self._num_left.tolist()
        verified = lengths_of(drafts)
        if trees is None:
            accepted = np.minimum(self._num_right, verified)
            decoding = list(map(self._verification, accepted.tolist(), num_left))
        else:
            rows = zip(drafts, trees.right, num_left, strict=True)
            paths = [right_path(draft, right[:left]) for draft, right, left in rows]
            accepted = lengths_of(paths)
            decoding = list(map(self._verification, accepted.tolist(), num_left, paths))
        if self._has_passes:
            self._remember_seen(accepted)
        return decoding, verified, verified

    def release(self, request_id: int) -> None:
        self.acceptance.end(request_id)

    def _offer(self, batch: Batch) -> DrafterView:
        rows = batch.decoding
        if not self._has_passes:
            ids = np.array([r.request_id for r in rows], dtype=np.int64)
            return self.acceptance.found(Places(ids, self._positions))
        lag = (
            np.array([r.num_tokens - 1 for r in rows], dtype=np.int64) - self._num_seen[self._slots]
        )
        return DrafterView(np.full(len(rows), self.acceptance.max_draft_tokens), lag=lag)

    def _left_of(self, request: Request) -> int:
        """Tokens of the answer that are still to come, EOS included."""
        return request.max_num_tokens - self.acceptance.max_draft_tokens - request.num_tokens

    def _verification(
        self, num_accepted: int, num_left: int, path: tuple[int, ...] | None = None
    ) -> Verification:
        if num_accepted < num_left - 1:
            found = self._verifications[num_accepted]
            return found if path is None else replace(found, accepted_nodes=path)
        emitted = [1] * num_accepted + [0]
        emitted[num_left - 1] = EOS
        return Verification(tuple(emitted), num_accepted, accepted_nodes=path)

    def _follow(self, batch: Batch) -> None:
        """Follow which tokens the draft model's KV lacks or has lost: see
        engine.drafting.model.drafter."""
        for op in batch.memory_ops:
            if isinstance(op, PrefixCopy):
                self._num_seen[op.target_slot] = min(self._num_seen[op.source_slot], op.num_tokens)
            elif isinstance(op, Trim):
                self._num_seen[op.slot] = min(self._num_seen[op.slot], op.num_tokens)
        for request in batch.prefill:
            self._num_seen[request.slot] = min(
                self._num_seen[request.slot], request.num_computed_tokens
            )
        self._slots = np.array([r.slot for r in batch.decoding], dtype=np.int64)
        computed = np.array([r.num_computed_tokens for r in batch.decoding], dtype=np.int64)
        self._num_seen[self._slots] = np.minimum(self._num_seen[self._slots], computed)

    def _remember_seen(self, accepted: np.ndarray) -> None:
        """A draft model has seen all tokens that it drafted, except the last, and keeps the
        accepted ones. A head computes those anew, from the target's features, and so does a draft
        model whose later passes are not exact."""
        kept = (
            0
            if self._makes_trees or self.time.later_drafts
            else np.minimum(accepted, self._drafted - 1)
        )
        seen = self._view.context_tokens + 1 + kept
        rows = self._drafted > 0
        self._num_seen[self._slots[rows]] = seen[rows]
