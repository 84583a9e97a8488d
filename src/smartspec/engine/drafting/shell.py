"""The shell of drafters with passes: what is the same whatever makes the drafts."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import Batch, Draft, Verification, no_tokens
from smartspec.core.blocks import PrefixCopy, Trim
from smartspec.core.request import Request
from smartspec.engine.drafting.chains import draft_chains
from smartspec.engine.drafting.pass_of_size import verification_pass
from smartspec.engine.models.model_runner import ModelRunner


class PassDrafter:
    """Chains by one pass per depth, of a drafter that keeps nothing between steps. Implements
    core.drafter.ProfiledDrafter, but for _pass."""

    def __init__(self, runner: ModelRunner, spec: DrafterSpec):
        self.spec, self.runner = spec, runner

    @property
    def profile_key(self) -> list:
        return self.runner.loaded.profile_key

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        return verification_pass(self.runner, num_rows, num_new, context)

    def begin_step(self, batch: Batch) -> None:
        """Nothing to do: a drafter without memory has nothing to move."""

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any length."""
        return DrafterView(np.full(len(batch.decoding), UNLIMITED, dtype=np.int64))

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """Draft lengths[i] tokens after the text of row i (int [R]), fewer where stop says so; a
        row of length 0 costs nothing."""
        return draft_chains(batch.decoding, lengths, stop, partial(self._pass, batch.decoding))

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """No free tests: nothing is known of drafts that were not made."""
        return FreeTests(*[no_tokens(len(verified))] * 3)

    def _pass(
        self, requests: Sequence[Request], rows: list[int], newest: list[np.ndarray], depth: int
    ) -> torch.Tensor:
        """See ChainPass. requests: of the whole batch."""
        raise NotImplementedError


class KVDrafter(PassDrafter):
    """A drafter with memory of its own in the target's slots, which follows them. runner: has
    apply, too."""

    def __init__(self, runner, spec: DrafterSpec, num_slots: int):
        super().__init__(runner, spec)
        # first tokens of each slot that the KV holds
        self._num_seen = np.zeros(num_slots, dtype=np.int64)

    def begin_step(self, batch: Batch) -> None:
        """Follow the block manager's memory operations, and forget what was rolled back since the
        last step.

        Must run in every step: a later one could no longer tell rejected drafts from committed
        text.
        """
        self.runner.apply(batch.memory_ops)
        for op in batch.memory_ops:
            if isinstance(op, PrefixCopy):
                self._copy(op.source_slot, op.target_slot)
                self._forget(op.target_slot, op.num_tokens)
            elif isinstance(op, Trim):
                self._forget(op.slot, op.num_tokens)
        for request in (*batch.decoding, *batch.prefill):
            self._forget(request.slot, request.num_computed_tokens)

    def _copy(self, source: int, target: int) -> None:
        """One slot has become a copy of another."""
        self._num_seen[target] = self._num_seen[source]

    def _forget(self, slot: int, num_tokens: int) -> None:
        """Nothing is known after so many tokens."""
        self._num_seen[slot] = min(self._num_seen[slot], num_tokens)
