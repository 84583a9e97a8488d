"""Training a head on a processor: what is learned, when it is kept, and how to go on."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from lab.train.batches import collate, epoch, held_out_rows
from lab.train.files import write_whole
from lab.train.muon import Muon
from lab.train.shards import shard_paths
from lab.train.unroll import NUM_DEPTHS, TrainedHead, chain_matches, loss_of

CHECKPOINT = "training.pt"
CURVE = "curve.jsonl"
HELD_OUT_ROWS = 64


@dataclass(frozen=True)
class TrainingSettings:
    """kind: of head, one of kinds.KINDS. num_tokens: answer tokens to learn from, repeated ones
    included. num_steps: of the training-time test; a head that drafts in one pass learns all its
    depths.
    learning_rate: after warm_up batches; it falls to a tenth along a cosine over num_tokens.
    from_head: folder of an EAGLE-3 head to go on from, None for the target's last layer."""

    kind: str = "eagle3"
    num_tokens: int = 1_000_000
    num_steps: int = 3
    draft_vocab_size: int = 8192
    learning_rate: float = 1e-2
    warm_up: int = 20
    weight_decay: float = 0.01
    max_gradient: float = 1.0
    checkpoint_seconds: float = 300.0
    seed: int = 0
    from_head: str | None = None


class Training:
    """A head, its optimisers, and how far along the data it is."""

    def __init__(
        self, head: TrainedHead, embedding: torch.Tensor, data: Path, settings: TrainingSettings
    ):
        """embedding: the target's, [V, hidden_size]. data: a folder of shards with signals."""
        self.head, self.embedding, self.data, self.settings = head, embedding, data, settings
        self.num_tokens = self.num_batches = self.epoch = self.batch_in_epoch = 0
        self.num_shards = len(shard_paths(data))  # of this epoch: more may be appended meanwhile
        self.losses: list[float] = []
        self._num_steps = settings.num_steps if settings.kind == "eagle3" else NUM_DEPTHS
        self._in_bfloat16 = bfloat16_is_faster()  # of a learned weight the fp32 copy is what learns
        self.optimizers = make_optimizers(
            head, settings, torch.bfloat16 if self._in_bfloat16 else torch.float32
        )
        self._draft_ids = np.full(embedding.shape[0], -1, dtype=np.int64)
        self._draft_ids[head.target_ids.numpy()] = np.arange(len(head.target_ids))
        held_out = held_out_rows(data, HELD_OUT_ROWS)
        self._held_out = [
            collate(held_out[i : i + 8], self._draft_ids) for i in range(0, len(held_out), 8)
        ]

    def run(self, folder: Path, report: Callable[[str], None]) -> None:
        """Learn until settings.num_tokens; every checkpoint_seconds, and at the end, the state is
        kept in folder."""
        kept = time.monotonic()
        while self.num_tokens < self.settings.num_tokens:
            for batch in epoch(
                self.data,
                self.num_shards,
                self._draft_ids,
                self.settings.seed + self.epoch,
                self.batch_in_epoch,
            ):
                self._learn(batch)
                if time.monotonic() - kept > self.settings.checkpoint_seconds:
                    self.keep(folder, report)
                    kept = time.monotonic()
                if self.num_tokens >= self.settings.num_tokens:
                    break
            else:
                self.epoch, self.batch_in_epoch = self.epoch + 1, 0
                self.num_shards = len(shard_paths(self.data))
        self.keep(folder, report)

    def _learn(self, batch) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._learning_rate()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._in_bfloat16):
            loss = loss_of(self.head, self.embedding, batch, self._num_steps)
        self.head.zero_grad()
        loss.backward()
        gradient = torch.nn.utils.clip_grad_norm_(
            self.head.parameters(), self.settings.max_gradient
        )
        if not (loss.isfinite() and gradient.isfinite()):
            raise ValueError(
                f"after {self.num_tokens} tokens the loss is {loss.item():g} and its gradient "
                f"{gradient.item():g}: what was kept last stays, go on from there with a "
                f"--learning-rate below {self.settings.learning_rate:g}"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self.losses = [*self.losses[-49:], loss.item()]
        self.num_tokens += int((batch.lengths - batch.answer_starts).sum())
        self.num_batches += 1
        self.batch_in_epoch += 1

    def _learning_rate(self) -> float:
        warm = min(1.0, (self.num_batches + 1) / self.settings.warm_up)
        done = min(1.0, self.num_tokens / self.settings.num_tokens)
        return self.settings.learning_rate * warm * (0.55 + 0.45 * math.cos(math.pi * done))

    def acceptance(self) -> list[float]:
        """On held-out rows: the chance that a token of a chain is right where those before it were,
        by position."""
        counts = torch.zeros(NUM_DEPTHS, 2, dtype=torch.int64)
        for batch in self._held_out:
            counts += chain_matches(self.head, self.embedding, batch, NUM_DEPTHS)
        return (counts[:, 1] / counts[:, 0].clamp(min=1)).tolist()

    def keep(self, folder: Path, report: Callable[[str], None]) -> None:
        """Write the state, and a line of the learning curve. Raises OSError naming the file,
        ValueError where weights are not finite; what was kept before stays."""
        self._check_weights(
            "what was kept last stays, go on from there with a lower --learning-rate"
        )
        rates = self.acceptance()
        line = {
            "tokens": self.num_tokens,
            "epoch": self.epoch,
            "loss": float(np.mean(self.losses)) if self.losses else None,
            "acceptance": [round(rate, 4) for rate in rates],
            "emitted_per_step": round(1 + float(np.cumprod(rates).sum()), 4),
        }
        text = json.dumps(line, allow_nan=False)
        write_whole(folder / CHECKPOINT, lambda file: torch.save(self._state(), file))
        before = (folder / CURVE).read_bytes() if (folder / CURVE).exists() else b""
        write_whole(folder / CURVE, lambda file: file.write(before + f"{text}\n".encode()))
        report(text)

    def _check_weights(self, remedy: str) -> None:
        wrong = [
            name for name, value in self.head.state_dict().items() if not value.isfinite().all()
        ]
        if wrong:
            raise ValueError(
                f"after {self.num_tokens} tokens {wrong[0]} of the head holds NaN or infinity: "
                f"{remedy}"
            )

    def _state(self) -> dict:
        names = ("num_tokens", "num_batches", "epoch", "batch_in_epoch", "num_shards", "losses")
        progress = {name: getattr(self, name) for name in names}
        return {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": progress,
            "settings": asdict(self.settings),
        }

    def resume(self, folder: Path) -> bool:
        """Go on where folder's checkpoint ended; False where it has none. Raises ValueError where
        it is of another head or cannot be read, and names the remedy."""
        path = folder / CHECKPOINT
        if not path.exists():
            return False
        try:
            state = torch.load(path, weights_only=True)
            self.head.load_state_dict(state["head"])
            for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
            for name, value in state["progress"].items():
                setattr(self, name, value)
            self._check_weights("nothing can be learned from there")
        except Exception as error:  # torch raises many kinds for what is one thing here
            raise ValueError(
                f"{path} cannot be continued ({error}): delete it, or train into another folder"
            ) from error
        return True


def make_optimizers(
    head: TrainedHead, settings: TrainingSettings, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Muon for matrices, which multiplies in dtype, and AdamW for the rest."""
    learned = [p for p in head.parameters() if p.requires_grad]
    matrices, others = [p for p in learned if p.ndim == 2], [p for p in learned if p.ndim != 2]
    common = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    optimizers: list[torch.optim.Optimizer] = [Muon(matrices, dtype=dtype, **common)]
    if others:  # Medusa heads have none
        optimizers.append(torch.optim.AdamW(others, betas=(0.9, 0.95), **common))
    return optimizers


def bfloat16_is_faster() -> bool:
    """Whether this processor multiplies matrices of bfloat16 clearly faster than of fp32: some have
    instructions for it, others convert every number."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(128, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        durations = []
        for _ in range(5):
            began = time.perf_counter()
            a @ b
            durations.append(time.perf_counter() - began)
        seconds[dtype] = min(durations)
    return seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]
