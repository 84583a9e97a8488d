"""Early exits from a target: passes through its first layers alone, and what these computed, for
the layers above."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from smartspec.core.blocks import MemoryOp
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.model_runner import ModelRunner, pieces_of


@dataclass(frozen=True)
class ExitRows:
    """The results of the first num_layers layers for token_ids, int32 [n], in places start.. of a
    slot: hidden, [n, hidden_size]."""

    num_layers: int
    start: int
    token_ids: np.ndarray
    hidden: torch.Tensor

    def followed_by(self, segment: Segment, hidden: torch.Tensor) -> "ExitRows":
        """The same and the rows of a segment that begins where they end."""
        token_ids = np.concatenate([self.token_ids, segment.token_ids])
        return ExitRows(self.num_layers, self.start, token_ids, torch.cat([self.hidden, hidden]))

    def num_shared(self, segment: Segment) -> int:
        """First tokens of the segment that are these."""
        if segment.start != self.start or segment.tree is not None or segment.sparse is not None:
            return 0
        num = min(len(self.token_ids), segment.num_tokens)
        differs = np.flatnonzero(self.token_ids[:num] != segment.token_ids[:num])
        return int(differs[0]) if len(differs) else num


class ExitMemory:
    """Rows that passes through the first layers left, by slot, until the step's verification has
    read them."""

    def __init__(self):
        self._rows: dict[int, ExitRows] = {}

    def clear(self) -> None:
        self._rows.clear()

    def add(
        self, segments: Sequence[Segment], num_layers: int, hidden: Sequence[torch.Tensor]
    ) -> None:
        """hidden: of each segment, what the first num_layers layers computed, [num_tokens,
        hidden_size]."""
        for segment, rows in zip(segments, hidden, strict=True):
            new = ExitRows(num_layers, segment.start, segment.token_ids, rows)
            old = self._rows.get(segment.slot)
            goes_on = old is not None and old.num_layers == num_layers
            goes_on = goes_on and old.start + len(old.token_ids) == segment.start
            self._rows[segment.slot] = old.followed_by(segment, rows) if goes_on else new

    def of(self, segments: Sequence[Segment]) -> dict[int, tuple[int, ExitRows]]:
        """The number and the rows of first tokens that have been computed, by the number of their
        segment. All of one exit: rows of others are left out."""
        found: dict[int, tuple[int, ExitRows]] = {}
        for number, segment in enumerate(segments):
            rows = self._rows.get(segment.slot)
            if rows is None or not (num := rows.num_shared(segment)):
                continue
            if not found or rows.num_layers == next(iter(found.values()))[1].num_layers:
                found[number] = num, rows
        return found


@contextmanager
def first_layers(model: nn.Module, num_layers: int) -> Iterator[None]:
    """A pass inside the block ends after so many layers: their output goes to the final norm and
    the output embedding. For models of transformers, which read in every pass how many layers they
    have."""
    config = model.config.get_text_config()
    num_all, config.num_hidden_layers = config.num_hidden_layers, num_layers
    try:
        yield
    finally:
        config.num_hidden_layers = num_all


class ExitRunner(ModelRunner):
    """A ModelRunner whose draft passes end early, and whose verification goes on above them."""

    _exited: ExitMemory

    @classmethod
    def of(cls, target: ModelRunner) -> "ExitRunner":
        """The target itself, which its executor goes on to run, as one."""
        if not isinstance(target, cls):
            target.__class__, target._exited = cls, ExitMemory()
        return target

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """See ModelRunner. What passes through the first layers left is forgotten."""
        self._exited.clear()
        super().apply(memory_ops)

    @torch.inference_mode()
    def forward(self, segments: list[Segment]) -> torch.Tensor:
        """See ModelRunner."""
        order, ordered = self._placed(segments)
        if known := self._exited.of(ordered) if self._fused is not None and not self.taps else {}:
            return self._gone_on(ordered, order, known)
        return super().forward(segments)

    @torch.inference_mode()
    def forward_exit(self, segments: list[Segment], num_layers: int) -> torch.Tensor:
        """A pass through the first num_layers layers, the final norm and the output embedding:
        logits as of forward.

        The KV of these layers is written. Where layers are fused, what the last of them computed is
        kept: a forward over the same tokens, before the next memory operations, computes the layers
        above alone."""
        order, ordered = self._placed(segments)
        token_ids, plan = self._plan(ordered)
        wanted = self._wanted(ordered, order, len(token_ids))
        if self._fused is None or plan.tiles is None:
            with first_layers(self.loaded.model, num_layers):
                logits, _ = self._computed(token_ids, plan, wanted, taps=())
        else:
            hidden = self._fused.layers(self._fused.embed(token_ids), plan, 0, num_layers)
            logits = self._fused.logits(hidden, wanted)
            self._exited.add(ordered, num_layers, pieces_of(hidden[0], ordered))
        return logits[: sum(s.num_logits for s in segments)]

    def _gone_on(
        self, ordered: list[Segment], order: list[int], known: dict[int, tuple[int, ExitRows]]
    ) -> torch.Tensor:
        """Compute as forward does, where of some segments the first layers have computed the first
        tokens already."""
        assert self._fused is not None
        end = next(iter(known.values()))[1].num_layers
        hidden: dict[int, list[torch.Tensor]] = {
            n: [rows.hidden[:num]] for n, (num, rows) in known.items()
        }
        num_known = {number: num for number, (num, _) in known.items()}
        left = {number: _after(s, num_known.get(number, 0)) for number, s in enumerate(ordered)}
        left = {number: segment for number, segment in left.items() if segment.num_tokens}
        if left:
            token_ids, plan = self._plan(list(left.values()))
            computed = self._fused.layers(self._fused.embed(token_ids), plan, 0, end)
            for number, rows in zip(left, pieces_of(computed[0], list(left.values())), strict=True):
                hidden.setdefault(number, []).append(rows)
        token_ids, plan = self._plan(ordered)
        rows = torch.cat([piece for number in range(len(ordered)) for piece in hidden[number]])
        padded = torch.cat([rows, rows.new_zeros(len(token_ids) - len(rows), rows.shape[1])])
        computed = self._fused.layers(padded[None], plan, end, self.loaded.num_layers)
        logits = self._fused.logits(computed, self._wanted(ordered, order, len(token_ids)))
        return logits[: sum(s.num_logits for s in ordered)]


def _after(segment: Segment, num: int) -> Segment:
    """The segment without its first num tokens."""
    if not num:
        return segment
    return replace(segment, start=segment.start + num, token_ids=segment.token_ids[num:])
