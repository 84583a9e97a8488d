"""The target as its own drafter: its passes over the first tokens of a text and the newest ones
alone, as in MagicDec (arXiv 2408.11049, with the sparse KV of StreamingLLM, arXiv 2309.17453).

After a long text a pass takes most of its time to read KV, which a draft pass need not do. It reads
the target's own KV, so nothing lags and nothing is copied. It also writes there, after the computed
text of the request: the KV of the newest token and of draft tokens. Verification writes the KV of
the newest token again, and of all tokens that it accepts, before they are text. What is beyond the
computed text of a slot is never read or copied.

    smartspec serve --drafter prompt-lookup,recycling,lab.drafters.self_draft:SelfDraft:256
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView
from smartspec.core.batch import Batch
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.sparse_window import SparseWindow
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.drafting.shell import PassDrafter
from smartspec.engine.models.model_runner import ModelRunner

NUM_SINKS = 4  # first tokens of a text that attention needs, as in StreamingLLM
# A text of fewer windows is not drafted for, as reading all of it takes little longer. With a
# window of 256 and all drafts accepted, tokens per second were 1.02 of those without drafts at
# 1,100 tokens, and 1.20 at 1,600.
LEAST_WINDOWS = 6


class SelfDraft(PassDrafter):
    """Chains for several requests at once; one pass of the target per depth. The KV is the
    target's, which its executor moves. Implements core.drafter.Drafter.

    window: newest tokens that a draft token sees, itself included; NUM_SINKS more are the first of
    the text. A request is drafted for if its text has more than LEAST_WINDOWS windows. ValueError
    where no text is so long, or the window is no positive number.
    """

    def __init__(
        self,
        target: ModelRunner,
        window: int = 256,
        *,
        num_slots: int = 0,
        max_draft_tokens: int = 0,
    ):
        if window != int(window) or window < 1:
            raise ValueError(
                f"the window must be a positive number of tokens, as in SelfDraft:256, got {window}"
            )
        if LEAST_WINDOWS * window >= target.max_len:
            raise ValueError(
                f"a window of {window} drafts after texts of more than {LEAST_WINDOWS * window} "
                f"tokens, and the context is {target.max_len}: use a window below "
                f"{target.max_len / LEAST_WINDOWS:g}, or a larger --max-model-len"
            )
        self.sparse = SparseWindow(NUM_SINKS, int(window))
        spec = DrafterSpec(f"self:{window}", has_passes=True, context_limit=self.sparse.num_places)
        super().__init__(target, spec)

    @property
    def profile_key(self) -> list:
        return [self.spec.name, *super().profile_key]

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        segments = segments_of_size(self.runner, num_rows, num_new, context)
        segments = [replace(segment, sparse=self.sparse) for segment in segments]
        # on a device it is over when it is read
        return lambda: self.runner.forward(segments).argmax(dim=-1).cpu()

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any length after long texts, none after others."""
        contexts = np.array(
            [request.num_computed_tokens for request in batch.decoding], dtype=np.int64
        )
        return DrafterView(np.where(contexts > LEAST_WINDOWS * self.sparse.window, UNLIMITED, 0))

    def _pass(
        self, requests: Sequence[Request], rows: list[int], newest: list[np.ndarray], depth: int
    ) -> torch.Tensor:
        """See ChainPass."""
        return self.runner.forward(
            [
                Segment(
                    requests[row].slot,
                    requests[row].num_computed_tokens + depth,
                    token_ids,
                    1,
                    sparse=self.sparse,
                )
                for row, token_ids in zip(rows, newest, strict=True)
            ]
        )
