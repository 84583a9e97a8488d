"""One model on its device: segments of tokens in, logits out. Anything that runs on the device
starts here."""

from contextlib import nullcontext

import numpy as np
import torch

from smartspec.engine.attention.ragged import AttentionPlan, Segment
from smartspec.engine.models.fused_pass import PlacedPass
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.ragged_runner import RaggedRunner, logit_rows
from smartspec.engine.models.taps import check_taps, tapped


class ModelRunner(RaggedRunner):
    """A loaded model and its KV cache of num_slots ranges of max_len positions.

    taps: ascending, what the first i layers have computed is kept of every pass, see features.
    Raises ValueError where the model cannot be served with that many, or has no such layers.
    """

    def __init__(
        self, loaded: LoadedModel, *, num_slots: int, max_len: int, taps: tuple[int, ...] = ()
    ):
        if max_len > loaded.max_model_len:
            raise ValueError(
                f"max_len {max_len} exceeds {loaded.max_model_len}, {loaded.max_model_len_reason} "
                f"({loaded.name!r}): lower it"
            )
        if taps:
            check_taps(loaded.model, taps)
        super().__init__(loaded, num_slots, max_len)
        self.taps = taps
        self.features: list[torch.Tensor] = []
        self._fused = (
            PlacedPass(loaded.fused_pass, self.cache, loaded.windows) if loaded.fused_pass else None
        )

    def keep_path(self, slot: int, start: int, nodes: tuple[int, ...]) -> None:
        """The draft tree whose nodes lie in places start.. of a slot has become text: these of
        them, root first."""
        if nodes != tuple(range(len(nodes))):
            self.cache.compact(slot, start, start + np.array(nodes))

    @torch.inference_mode()
    def forward(self, segments: list[Segment]) -> torch.Tensor:
        """One pass over all segments: logits [sum of num_logits, vocabulary], in the order of the
        segments.

        With taps, features then holds of each segment what those layers computed: [num_tokens, taps
        * hidden_size].
        """
        order, ordered = self._placed(segments)
        token_ids, plan = self._plan(ordered)
        wanted = self._wanted(ordered, order, len(token_ids))
        logits, found = self._computed(token_ids, plan, wanted, self.taps)
        if found:
            self.features = _by_segment(torch.cat(found, dim=-1)[0], ordered, order)
        return logits[: sum(s.num_logits for s in segments)]

    def _wanted(
        self, ordered: list[Segment], order: list[int], num_rows: int
    ) -> torch.Tensor | None:
        """Rows whose logits are wanted, int64 [n]; None for all, as where requests only decode."""
        rows = logit_rows(ordered, order)
        return (
            None
            if np.array_equal(rows, np.arange(num_rows))
            else torch.from_numpy(rows).to(self.device)
        )

    def _computed(
        self,
        token_ids: torch.Tensor,
        plan: AttentionPlan,
        wanted: torch.Tensor | None,
        taps: tuple[int, ...],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits [n, vocabulary] of the wanted rows (None: of all), and what the tapped layers
        computed, [1, N, hidden_size] each."""
        if self._fused is not None and plan.tiles is not None:
            return self._fused.run(token_ids, plan, wanted, taps)
        with tapped(self.loaded.model, taps) if taps else nullcontext([]) as found:
            output = self.loaded.model(
                input_ids=token_ids[None],
                position_ids=plan.positions[None],
                use_cache=False,
                logits_to_keep=0 if wanted is None else wanted,
                attention_plan=plan,
            )
        return output.logits[0], found


def pieces_of(rows: torch.Tensor, ordered: list[Segment]) -> list[torch.Tensor]:
    """The ragged rows [N, ...] of each segment."""
    ends = np.cumsum([s.num_tokens for s in ordered]).tolist()
    return [
        rows[end - segment.num_tokens : end] for segment, end in zip(ordered, ends, strict=True)
    ]


def _by_segment(rows: torch.Tensor, ordered: list[Segment], order: list[int]) -> list[torch.Tensor]:
    """pieces_of in the caller's order."""
    pieces: list[torch.Tensor] = [rows] * len(ordered)
    for index, piece in zip(order, pieces_of(rows, ordered), strict=True):
        pieces[index] = piece
    return pieces
