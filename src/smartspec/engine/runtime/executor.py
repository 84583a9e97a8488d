"""The live executor: the target model, its drafters, and the clock."""

import time
from dataclasses import replace

import numpy as np

from smartspec.control.records import OTHER_TEXT, DraftPlan, StepSeconds
from smartspec.core.batch import NO_DRAFT, Batch, Draft, StepResult
from smartspec.core.engine_core import shorten
from smartspec.core.request import Request
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.draft_model import DraftModel, Proposal
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.sampling.verification import verify


class LiveExecutor:
    """Runs what a step decides, and measures it. Implements core.engine_core.Executor."""

    def __init__(
        self,
        runner: ModelRunner,
        lookup: PromptLookupDrafter | None,
        draft_model: DraftModel | None,
        recycling: RecyclingDrafter | None = None,
    ):
        self.runner = runner
        self.lookup = lookup
        self.draft_model = draft_model
        self.recycling = recycling
        self._step_began = 0.0
        self._draft_seconds = 0.0
        self._proposal: Proposal | None = None

    @staticmethod
    def clock() -> float:
        """Seconds on the clock that EngineCore.step's now must come from."""
        return time.monotonic()

    def offer(self, batch: Batch, now: float) -> tuple[Draft, ...]:
        """Model-free drafts for every decoding request; also carries out the batch's memory operations."""
        self._step_began = now
        self.runner.apply(batch.memory_ops)
        if self.draft_model is not None:
            self.draft_model.begin_step(batch)
        return tuple(self._offer(request.token_ids) for request in batch.decoding)

    def _offer(self, token_ids: np.ndarray) -> Draft:
        """Prompt lookup, unless recycling knows a longer context: what the request itself reads is the better guide."""
        offer = NO_DRAFT if self.lookup is None else self.lookup.propose(token_ids)
        if self.recycling is None:
            return offer
        recycled = self.recycling.propose(token_ids, longer_than=offer.evidence)
        return replace(recycled, evidence=OTHER_TEXT + recycled.evidence) if len(recycled) else offer

    def unseen_tokens(self, batch: Batch) -> np.ndarray:
        if self.draft_model is None:
            return np.zeros(len(batch.decoding), dtype=np.int64)
        return self.draft_model.unseen_tokens(batch.decoding)

    def draft(self, batch: Batch, plan: DraftPlan, offers: tuple[Draft, ...]) -> tuple[Draft, ...]:
        """Offers cut to the plan; the draft model runs only for rows whose plan asks for it."""
        began = self.clock()
        self._proposal = None
        drafts = [shorten(offer, int(length)) for offer, length in zip(offers, plan.lengths, strict=True)]
        wanted = np.where(plan.use_model, plan.lengths, 0)
        if self.draft_model is not None and wanted.any():
            self._proposal = self.draft_model.propose(batch.decoding, wanted, plan.stop)
            made = self._proposal.drafts
            drafts = [made[i] if plan.use_model[i] else draft for i, draft in enumerate(drafts)]
        self._draft_seconds = self.clock() - began
        return tuple(drafts)

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        """One pass of the target over the whole batch, then acceptance."""
        began = self.clock()
        segments = [_decode_segment(r, draft) for r, draft in zip(batch.decoding, drafts, strict=True)]
        segments += [_prefill_segment(r, n) for r, n in zip(batch.prefill, batch.num_prefill_tokens, strict=True)]
        logits = self.runner.forward(segments)
        ending = [request for request, s in zip(batch.prefill, segments[len(drafts) :], strict=True) if s.num_logits]
        verifications = verify(
            logits,
            [*batch.decoding, *ending],
            [draft.token_ids for draft in drafts] + [NO_DRAFT.token_ids] * len(ending),
            [draft.probs for draft in drafts] + [None] * len(ending),
        )
        if self.recycling is not None:
            for request, verification in zip([*batch.decoding, *ending], verifications, strict=True):
                self.recycling.learn(request.token_ids, verification.emitted_token_ids)
        ended = dict(zip(ending, verifications[len(drafts) :], strict=True))
        return StepResult(
            decoding=tuple(verifications[: len(drafts)]),
            prefill=tuple(ended.get(request) for request in batch.prefill),
            seconds=self._step_seconds(target=self.clock() - began),
            caught_up=None if self._proposal is None else self._proposal.caught_up,
            caught_up_matches=None if self._proposal is None else self._proposal.matches,
        )

    def release(self, request_id: int) -> None:
        """Nothing to do: drafters keep their state by slot, and slots are tracked in every step."""

    def _step_seconds(self, target: float) -> StepSeconds:
        total = self.clock() - self._step_began
        return StepSeconds(
            draft=self._draft_seconds, target=target, host=max(0.0, total - self._draft_seconds - target)
        )


def _decode_segment(request: Request, draft: Draft) -> Segment:
    token_ids = np.concatenate([request.token_ids[-1:], draft.token_ids])
    return Segment(request.slot, request.num_computed_tokens, token_ids, num_logits=len(token_ids))


def _prefill_segment(request: Request, num_tokens: int) -> Segment:
    start = request.num_computed_tokens
    end = start + num_tokens
    return Segment(request.slot, start, request.tokens[start:end], num_logits=int(end == request.num_tokens))
