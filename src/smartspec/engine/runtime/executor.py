"""The live executor: the target model, its drafters, and the clock."""

import time
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch

from smartspec.control.records import DrafterQuery, DrafterView, Plan, StepSeconds
from smartspec.core.batch import (
    NO_DRAFT,
    Batch,
    Draft,
    StepResult,
    TokenLogprobs,
    Verification,
    no_tokens,
    shorten,
)
from smartspec.core.blocks import Wipe
from smartspec.core.drafter import Drafter, TreeDrafter
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.free_cores import FreeCores
from smartspec.engine.sampling.forced_acceptance import verify_forced
from smartspec.engine.sampling.logprobs import prompt_logprobs
from smartspec.engine.sampling.verification import verify

MAX_WRITTEN_TOKENS = 256  # after the computed text of a request: no draft is longer


class LiveExecutor:
    """Runs what a step decides, and measures it. Implements core.engine_core.Executor.

    drafters: in the order of their numbers. forced_acceptance: see sampling.forced_acceptance, None
    for verification by the target. free_cores: sets the threads of passes, None for always the
    same.
    """

    def __init__(
        self,
        runner: ModelRunner,
        drafters: tuple[Drafter, ...] = (),
        forced_acceptance: float | None = None,
        free_cores: FreeCores | None = None,
    ):
        self.runner = runner
        self._free_cores = free_cores
        self._is_forced = forced_acceptance is not None
        self._verify = (
            verify if forced_acceptance is None else partial(verify_forced, forced_acceptance)
        )
        self.drafters = drafters
        self._step_began = 0.0
        self._was_queried = False  # whether any drafter was, in the step under way
        self._draft_seconds = 0.0
        self._drafter = np.zeros(0, dtype=np.int64)  # of each row of the step under way

    @staticmethod
    def clock() -> float:
        """Seconds on the clock that EngineCore.step's now must come from."""
        return time.monotonic()

    def begin_step(self, batch: Batch, now: float) -> tuple[DrafterQuery, ...]:
        self._step_began, self._was_queried = now, False
        if self._free_cores is not None:
            self._free_cores.adapt(now)
        self.runner.apply(batch.memory_ops)
        for drafter in self.drafters:
            drafter.begin_step(batch)
        return tuple([partial(self._query, drafter, batch) for drafter in self.drafters])

    def _query(self, drafter: Drafter, batch: Batch, is_queried: bool) -> DrafterView:
        self._was_queried |= is_queried
        if drafter.spec.has_passes and not is_queried:
            return DrafterView(*[no_tokens(len(batch.decoding))] * 3)
        return drafter.view(batch, is_queried)

    def draft(self, batch: Batch, plan: Plan) -> tuple[Draft, ...]:
        """Each drafter runs only for the rows it is planned for."""
        began = self.clock()
        self._drafter = plan.drafter
        drafts = [NO_DRAFT] * len(batch.decoding)
        for number, drafter in enumerate(self.drafters if plan.lengths.any() else ()):
            lengths = plan.lengths_of(number)
            if lengths.any():
                made = _draft(drafter, batch, lengths, plan)
                for row in np.flatnonzero(lengths).tolist():
                    drafts[row] = made[row]
        self._draft_seconds = self.clock() - began
        return tuple(drafts)

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        """One pass of the target over the whole batch, then acceptance. ValueError on a tree that
        is too large or whose parents do not stand before their children."""
        began = self.clock()
        segments = [
            _decode_segment(r, draft) for r, draft in zip(batch.decoding, drafts, strict=True)
        ]
        segments += [
            _prefill_segment(r, n)
            for r, n in zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        ]
        logits = self.runner.forward(segments)
        scores: tuple[list[TokenLogprobs], ...] = ()
        if any(request.num_unscored_tokens for request in batch.prefill):
            logits, scores = _score_prompts(logits, batch, segments[len(drafts) :])
        ends = zip(batch.prefill, segments[len(drafts) :], strict=True)
        ending = [request for request, segment in ends if segment.end == request.num_tokens]
        verifications = self._verify(
            logits,
            [*batch.decoding, *ending],
            [*drafts, *[NO_DRAFT] * len(ending)],
        )
        verifications[: len(drafts)] = self._verify_again(batch, drafts, verifications)
        for request, verification in zip(batch.decoding, verifications, strict=False):
            if verification.accepted_nodes is not None:
                self.runner.keep_path(request.slot, request.num_tokens, verification.accepted_nodes)
        ended = dict(zip(ending, verifications[len(drafts) :], strict=True))
        decoding = tuple(verifications[: len(drafts)])
        prefill = tuple(ended.get(request) for request in batch.prefill)
        free_tests = tuple(
            [
                drafter.observe(batch, own, decoding, prefill)
                for drafter, own in zip(self.drafters, self._by_drafter(drafts), strict=True)
            ]
        )
        # what the target would have accepted is not what is forced
        if not self._was_queried or self._is_forced:
            free_tests = ()
        seconds = self._step_seconds(target=self.clock() - began)
        return StepResult(decoding, prefill, seconds, free_tests=free_tests, prompt_logprobs=scores)

    def _by_drafter(self, drafts: tuple[Draft, ...]) -> list[np.ndarray]:
        """Verified draft tokens of each row that each drafter made: int [R] each."""
        if not any(drafts):
            return [no_tokens(len(drafts))] * len(self.drafters)
        verified = np.array([len(draft) for draft in drafts], dtype=np.int64)
        return [
            np.where(self._drafter == number, verified, 0) for number in range(len(self.drafters))
        ]

    def _verify_again(
        self, batch: Batch, drafts: tuple[Draft, ...], verifications: list[Verification]
    ) -> list[Verification]:
        """The verifications of the decoding requests; those without a next token once more, from
        passes that are fed no token before it is text.

        Of a draft token for which the model has no numbers, the NaN gets through the mask to the
        positions before it, where plain decoding would have none. A pass over the text alone
        decides on the first draft token by the same rule and random numbers. That is all of a
        point-mass draft: what its other tokens are changes no text. Tokens that were drawn are
        decided one by one, a pass for each: to drop them because there is a bad one among them
        would drop them for what was drawn. The target's features of these rows become those of
        their last pass.
        """
        num_known = {row: 0 for row in range(len(drafts)) if verifications[row].error is not None}
        features = list(self.runner.features) if num_known else []
        while num_known:
            found = dict(zip(num_known, self._verify_known(batch, drafts, num_known), strict=True))
            # there are none without taps
            of_pass = dict(zip(num_known, self.runner.features, strict=False))
            for row, known in tuple(num_known.items()):
                # the newest of them is the bad one: the next step's to say
                if known and found[row].error is not None:
                    del num_known[row]
                    continue
                verifications[row] = _as_far_as_computed(found[row], known)
                features[row : row + 1] = [of_pass[row]] if of_pass else []
                num_known[row] += 1
                is_drawn = drafts[row].probs is not None and not batch.decoding[row].params.greedy
                if not (is_drawn and known < found[row].num_accepted < len(drafts[row])):
                    del num_known[row]
            self.runner.features = features
        return verifications[: len(drafts)]

    def _verify_known(
        self, batch: Batch, drafts: tuple[Draft, ...], num_known: dict[int, int]
    ) -> list[Verification]:
        """A pass over the draft tokens of some rows that are known to be accepted (num_known of
        each row): what it says about these and the next one."""
        requests = [batch.decoding[row] for row in num_known]
        self.runner.apply(tuple(self._written_by_drafts(request) for request in requests))
        known = [shorten(drafts[row], num) for row, num in num_known.items()]
        with_next = [shorten(drafts[row], num + 1) for row, num in num_known.items()]
        logits = self.runner.forward(
            [_decode_segment(*each) for each in zip(requests, known, strict=True)]
        )
        repeats: list[int] = []
        for one, other in zip(known, with_next, strict=True):
            # After the next token, if there is one, stands the same row again; what it says is not
            # emitted.
            repeats += [1] * len(one) + [1 + len(other) - len(one)]
        return verify(
            logits.repeat_interleave(torch.tensor(repeats, device=logits.device), dim=0),
            requests,
            with_next,
        )

    def _written_by_drafts(self, request: Request) -> Wipe:
        start = request.num_computed_tokens
        return Wipe(request.slot, min(start + MAX_WRITTEN_TOKENS, self.runner.max_len), start)

    def release(self, request_id: int) -> None:
        """Nothing to do: drafters keep their state by slot, and slots are tracked in every step."""

    def _step_seconds(self, target: float) -> StepSeconds:
        total = self.clock() - self._step_began
        return StepSeconds(
            draft=self._draft_seconds,
            target=target,
            host=max(0.0, total - self._draft_seconds - target),
        )


def _as_far_as_computed(verification: Verification, num_fed: int) -> Verification:
    """The accepted tokens of a pass that was fed so many draft tokens, and one token after them."""
    num = min(verification.num_accepted, num_fed)
    emitted = verification.emitted_token_ids[: num + 1]
    logprobs = verification.logprobs and verification.logprobs[: num + 1]
    error = None if len(emitted) > num else verification.error
    return Verification(emitted, num, logprobs, error, is_callers=verification.is_callers)


def _draft(drafter: Drafter, batch: Batch, lengths: np.ndarray, plan: Plan) -> Sequence[Draft]:
    if plan.width == 1 or not drafter.spec.makes_trees:
        return drafter.draft(batch, lengths, plan.stop)
    return cast(TreeDrafter, drafter).draft_trees(
        batch, lengths, plan.passes, plan.width, plan.stop, plan.extras.get("chances")
    )


def _decode_segment(request: Request, draft: Draft) -> Segment:
    token_ids, start = request.token_ids[-1:], request.num_computed_tokens
    if not len(draft):
        return Segment(request.slot, start, token_ids, 1, None)
    token_ids = np.concatenate([token_ids, draft.token_ids])
    # In a tree the newest token is the root that all nodes follow.
    tree = None if draft.is_chain else tree_mask(np.concatenate([[-1], draft.parents + 1]), start)
    return Segment(request.slot, start, token_ids, len(token_ids), tree)


def _prefill_segment(request: Request, num_tokens: int) -> Segment:
    start = request.num_computed_tokens
    end = start + num_tokens
    num_logits = int(end == request.num_tokens)
    if request.num_unscored_tokens:
        num_logits = max(num_logits, end - max(start, len(request.prompt_logprobs)))
    return Segment(request.slot, start, request.tokens[start:end], num_logits)


def _score_prompts(
    logits: torch.Tensor, batch: Batch, segments: list[Segment]
) -> tuple[torch.Tensor, tuple[list[TokenLogprobs], ...]]:
    """Logprobs of prompts' tokens, by request in prefill; and the logits that are left: of the
    decoding requests, and the last row of each prompt that ends. segments: of the prompts."""
    row = len(logits) - sum(segment.num_logits for segment in segments)
    kept, found = [logits[:row]], []
    for request, segment in zip(batch.prefill, segments, strict=True):
        rows = logits[row : row + segment.num_logits]
        row += segment.num_logits
        if segment.end == request.num_tokens:
            kept.append(rows[-1:])
        known = len(request.prompt_logprobs) + 1
        tokens = request.tokens[known : min(segment.end + 1, request.num_prompt_tokens)]
        is_wanted = request.num_unscored_tokens > 0
        found.append(
            prompt_logprobs(rows[: len(tokens)], tokens, request.params.prompt_logprobs or 0)
            if is_wanted
            else []
        )
    return torch.cat(kept), tuple(found)
