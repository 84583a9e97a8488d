"""The target's first layers as its drafter: early exit, as in LayerSkip (arXiv 2404.16710).

A draft pass ends after some layers, and the final norm and the output embedding read what they computed. The layers
write the target's own KV. Verification goes on above them: of tokens that draft passes were fed, only the upper layers
run (see ModelRunner.forward_exit). What is beyond the computed text of a slot is never read or copied.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import Batch, Draft, Verification, no_tokens
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.chains import draft_chains
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.models.model_runner import ModelRunner


class ExitDrafter:
    """Drafts chains for several requests at once; one pass through the first num_layers layers of the target per depth.
    Implements core.drafter.Drafter."""

    def __init__(self, runner: ModelRunner, num_layers: int, name: str):
        self.num_layers = num_layers
        self.spec = DrafterSpec(name, has_passes=True)
        self.runner = runner

    def begin_step(self, batch: Batch) -> None:
        """Nothing to do: the KV is the target's, which its executor moves."""

    @property
    def profile_key(self) -> list:
        return [self.spec.name, *self.runner.loaded.profile_key]

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        segments = segments_of_size(self.runner, num_rows, num_new, context)
        # On a device it is over when it is read.
        return lambda: self.runner.forward_exit(segments, self.num_layers).argmax(dim=-1).cpu()

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any length."""
        return DrafterView(np.full(len(batch.decoding), UNLIMITED, dtype=np.int64))

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """Draft lengths[i] tokens after the text of row i (int [R]), fewer where stop says so."""
        return draft_chains(batch.decoding, lengths, stop, partial(self._pass, batch.decoding))

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """Nothing is known of drafts that were not made."""
        return FreeTests(*[no_tokens(len(batch.decoding))] * 3)

    def _pass(self, of_batch: Sequence[Request], rows: list[int], newest: list[np.ndarray], depth: int) -> torch.Tensor:
        """See ChainPass."""
        segments = [
            Segment(of_batch[row].slot, of_batch[row].num_computed_tokens + depth, token_ids, 1)
            for row, token_ids in zip(rows, newest, strict=True)
        ]
        return self.runner.forward_exit(segments, self.num_layers)
