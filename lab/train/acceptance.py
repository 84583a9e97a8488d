"""Training what says how likely a head's draft tokens are accepted, beside a head that stays as it
is (SpecDec++, arXiv 2405.19715).

Draft tokens are those of the head's own chains on texts of the target. A token counts where all
before it in its chain are the target's, as a host tests no other. The loss is binary cross entropy
in which rejections weigh more:

    - sum[a log s + w (1 - a) log(1 - s)] / sum[a + w (1 - a)]

What is learned are then the log-odds less log w, which is added in the end, so that they are those
of acceptance.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save

from lab.heads.acceptance_head import FILE, LEAST, AcceptanceHead
from lab.train.batches import collate, epoch, grouped, held_out_rows
from lab.train.earlier_head import earlier_head
from lab.train.files import alone, write_whole
from lab.train.run import record_missing
from lab.train.shards import shard_paths
from lab.train.unroll import NUM_DEPTHS, TrainingBatch, unroll
from smartspec.engine.drafting.head.eagle3 import Eagle3Head

NUM_STEPS = 3  # tokens of the chains that are learned from


@dataclass(frozen=True)
class AcceptanceSettings:
    """num_tokens: answer tokens to learn from. reject_weight: of rejections in the loss. The rest
    as in fit."""

    num_tokens: int = 200_000
    num_blocks: int = 1
    reject_weight: float = 6.0
    num_epochs: int = 3
    batch_size: int = 512
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class DraftTokens:
    """Draft tokens that were compared: hidden float16 [N, hidden_size], what the head's output
    embedding read; chances float32 [N], the head's of its likeliest token; accepted bool [N],
    whether that is the target's."""

    hidden: torch.Tensor
    chances: torch.Tensor
    accepted: torch.Tensor


def train_acceptance(
    model: str,
    data: Path,
    folder: Path,
    settings: AcceptanceSettings,
    report: Callable[[str], None],
) -> None:
    """Train it for the EAGLE-3 head in folder on the texts in data, and write it there if it tells
    more of held-out rows than the head's own chances. Raises as load_head, ValueError where there
    is nothing to learn from."""
    record_missing(model, data, "eagle3", report)
    head, embedding, _ = earlier_head(model, folder, "for these acceptance is learned")
    ids = np.full(len(embedding), -1, dtype=np.int64)
    ids[head.target_ids.numpy()] = np.arange(len(head.target_ids))
    with alone(folder):
        learned = draft_tokens(
            head, embedding, _up_to(settings.num_tokens, data, ids, settings.seed), NUM_STEPS
        )
        report(f"{len(learned.chances)} draft tokens to learn from")
        acceptance = learn(learned, settings)
        held_out = grouped(held_out_rows(data, 10**9), np.random.default_rng(0))
        tested = draft_tokens(
            head, embedding, (collate(rows, ids) for rows in held_out), NUM_DEPTHS
        )
        with torch.inference_mode():
            said = acceptance(tested.hidden.float(), tested.chances)
        loss = {
            "head": log_loss(torch.logit(tested.chances, LEAST), tested.accepted),
            "acceptance": log_loss(said, tested.accepted),
        }
        report(f"log loss on {len(said)} held-out draft tokens: {loss}")
        if loss["acceptance"] >= loss["head"]:
            report(
                f"nothing is written: the head's own chances tell as much; delete {folder / FILE} "
                "if there is one"
            )
            return
        weights = {
            name: value.to(torch.bfloat16) for name, value in acceptance.state_dict().items()
        }
        notes = {name: f"{value:.4f}" for name, value in loss.items()} | {"settings": str(settings)}
        write_whole(folder / FILE, lambda file: file.write(save(weights, notes)))


def _up_to(num_tokens: int, data: Path, ids: np.ndarray, seed: int) -> Iterable[TrainingBatch]:
    """Batches of training rows until they hold so many answer tokens, or all of one epoch."""
    for batch in epoch(data, len(shard_paths(data)), ids, seed, skip=0):
        yield batch
        num_tokens -= int((batch.lengths - batch.answer_starts).sum())
        if num_tokens <= 0:
            return


@torch.inference_mode()
def draft_tokens(
    head: Eagle3Head, embedding: torch.Tensor, batches: Iterable[TrainingBatch], num_steps: int
) -> DraftTokens:
    """The tokens of the head's chains up to num_steps long, each as long as it is right, and one
    more."""
    found: list[tuple[torch.Tensor, ...]] = []
    for batch in batches:
        right = torch.ones_like(batch.token_ids[:, 1:], dtype=torch.bool)
        for step, normed in enumerate(unroll(head, embedding, batch, num_steps)):
            right = right & batch.is_predicted(step)
            rows, columns = right.nonzero(as_tuple=True)
            chances, tokens = torch.softmax(head.lm_head(normed[right]), dim=-1).max(dim=-1)
            accepted = tokens == batch.drafts[rows, columns + 2 + step]
            found.append((normed[right].half(), chances, accepted))
            right[rows, columns] = accepted
    if not any(len(chances) for _, chances, _ in found):
        raise ValueError(
            "there are no rows to learn from: generate more texts with --generate TOKENS"
        )
    return DraftTokens(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def learn(tested: DraftTokens, settings: AcceptanceSettings) -> AcceptanceHead:
    """AdamW over batches in random order; the learning rate rises for 3 % of them and falls along a
    cosine."""
    torch.manual_seed(settings.seed)
    acceptance = AcceptanceHead(tested.hidden.shape[1], settings.num_blocks)
    optimizer = torch.optim.AdamW(acceptance.parameters(), settings.learning_rate)
    size = min(settings.batch_size, len(tested.chances))
    num_batches = settings.num_epochs * (len(tested.chances) // size)
    number = 0
    for _ in range(settings.num_epochs):
        for rows in torch.randperm(len(tested.chances)).split(size):
            if len(rows) < size:
                continue
            warm = min(1.0, (number + 1) / (0.03 * num_batches))
            for group in optimizer.param_groups:
                group["lr"] = (
                    settings.learning_rate
                    * warm
                    * (0.5 + 0.5 * math.cos(math.pi * number / num_batches))
                )
            log_odds = acceptance(tested.hidden[rows].float(), tested.chances[rows])
            loss = weighted_loss(log_odds, tested.accepted[rows].float(), settings.reject_weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number += 1
    with torch.no_grad():
        acceptance.output.bias += math.log(settings.reject_weight)
    return acceptance.requires_grad_(False)


def weighted_loss(
    log_odds: torch.Tensor, accepted: torch.Tensor, reject_weight: float
) -> torch.Tensor:
    """Binary cross entropy in which a rejection weighs so much. log_odds, accepted (0 or 1): float
    [N]."""
    rejected = reject_weight * (1.0 - accepted)
    total = accepted * F.logsigmoid(log_odds) + rejected * F.logsigmoid(-log_odds)
    return -total.sum() / (accepted + rejected).sum()


def log_loss(log_odds: torch.Tensor, accepted: torch.Tensor) -> float:
    """Mean loss in nats of these log-odds (float [N])."""
    return float(F.binary_cross_entropy_with_logits(log_odds, accepted.float()))
