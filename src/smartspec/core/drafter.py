"""The interface of every drafter to the engine, with a model or without."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from smartspec.control import DrafterSpec, DrafterView, FreeTests
from smartspec.control.records import StopRule
from smartspec.core.batch import Batch, Draft, Verification


class Drafter(Protocol):
    """Called in every step, in this order. Rows are those of batch.decoding."""

    spec: DrafterSpec

    def begin_step(self, batch: Batch) -> None:
        """Follow the batch's memory operations."""

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Find what it can draft in each row, before anything is decided. Where it is not queried:
        what costs nothing; a drafter with passes is then not called."""

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None) -> Sequence[Draft]:
        """One draft per row, of at most lengths[i] nodes (int [R]; 0: it does not draft there). Not
        called where all lengths are 0. stop: see control.records.StopRule; a model-free drafter
        need not call it."""

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """Learn from what the target emitted, as in StepResult; returns what it would have been
        right about beside its drafts that were verified. verified: int [R], tokens of its own
        drafts that were fed to the target."""


class ProfiledDrafter(Drafter, Protocol):
    """A drafter with passes (spec.has_passes): a pass costs time, which is measured when an engine
    starts.

    profile_key: what the time of a pass depends on beside the machine, JSON-able; begin with a
    name. Measured times are kept under it."""

    @property
    def profile_key(self) -> list: ...

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        """A pass like those of drafting, to be called and timed several times: num_rows texts of
        context tokens, in the first slots, are fed num_new more each. Called while there is no
        request; begin_step trims the slots after."""


class TreeDrafter(ProfiledDrafter, Protocol):
    """A drafter with passes that can feed one several nodes of a draft (spec.makes_trees)."""

    def draft_trees(
        self,
        batch: Batch,
        lengths: np.ndarray,
        depths: np.ndarray,
        width: int,
        stop: StopRule | None,
        chances: np.ndarray | None,
    ) -> Sequence[Draft]:
        """Draft trees, by the rules of draft: see control.records.Plan. ValueError where one is to
        have more than MAX_TREE_NODES nodes."""
