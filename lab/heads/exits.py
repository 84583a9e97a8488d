"""The target's first layers as its drafter: early exit, as in LayerSkip (arXiv 2404.16710).

A draft pass ends after some layers, and the final norm and the output embedding read what they
computed. The layers write the target's own KV. Verification goes on above them: of tokens that
draft passes were fed, only the upper layers run (see ExitRunner.forward_exit). What is beyond the
computed text of a slot is never read or copied.

    smartspec serve --drafter prompt-lookup,recycling,lab.heads.exits:Exit:8       exits after layer
                                                                                   8
    smartspec serve --drafter lab.heads.exits:Exit:0.25,lab.heads.exits:Exit:0.5   after 1/4 and 2/4
                                                                                   of the layers
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lab.heads.exit_runner import ExitRunner
from smartspec.control.records import DrafterSpec
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.drafting.shell import PassDrafter
from smartspec.engine.models.model_runner import ModelRunner


class Exit(PassDrafter):
    """Chains for several requests at once; one pass through the target's first num_layers layers
    per depth. The KV is the target's, which its executor moves. Implements core.drafter.Drafter.

    layers: how many, or a fraction of the target's. Raises ValueError where no layer is left below
    the exit or above.
    """

    def __init__(
        self, target: ModelRunner, layers: float, *, num_slots: int = 0, max_draft_tokens: int = 0
    ):
        num_all = target.loaded.num_layers
        self.num_layers = int(layers * num_all) if 0 < layers < 1 else layers
        if self.num_layers != int(self.num_layers) or not 0 < self.num_layers < num_all:
            raise ValueError(
                f"the target has {num_all} layers, so an exit must be after layer 1 to "
                f"{num_all - 1}, as in Exit:1, or a fraction of them, as in Exit:0.5; got {layers}"
            )
        super().__init__(
            ExitRunner.of(target), DrafterSpec(f"exit:{self.num_layers}", has_passes=True)
        )

    @property
    def profile_key(self) -> list:
        return [self.spec.name, *super().profile_key]

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        segments = segments_of_size(self.runner, num_rows, num_new, context)
        # On a device it is over when it is read.
        return lambda: self.runner.forward_exit(segments, self.num_layers).argmax(dim=-1).cpu()

    def _pass(
        self, requests: Sequence[Request], rows: list[int], newest: list[np.ndarray], depth: int
    ) -> torch.Tensor:
        """See ChainPass."""
        segments = [
            Segment(requests[row].slot, requests[row].num_computed_tokens + depth, token_ids, 1)
            for row, token_ids in zip(rows, newest, strict=True)
        ]
        return self.runner.forward_exit(segments, self.num_layers)
