"""What a head drafts after every place of a text at once, and how well that agrees with the target.

EAGLE-3 heads go several steps of their own drafting (training-time test, arXiv 2503.01840), heads
that draft in one pass as many depths of that, and recurrent ones as many tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lab.heads.medusa.head import MedusaHead
from lab.heads.p_eagle.head import PEagleHead
from lab.heads.redrafter.head import ReDrafterHead
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, rotary_tables

NUM_DEPTHS = 5  # tokens of the chains that are measured, and that heads draft in one pass

TrainedHead = Eagle3Head | MedusaHead | ReDrafterHead


@dataclass(frozen=True)
class TrainingBatch:
    """Rows padded to L + 1 tokens. token_ids int64 [B, L + 1]; features [B, L, feature_size];
    answer_starts, lengths int64 [B]; top_ids int64 and top_probs [B, L + 1, C], the target's
    candidates in the place of each token, zeros where none are known; ids are those of the draft
    vocabulary, -1 for tokens it lacks. drafts int64 [B, L + 1]: token_ids by the draft
    vocabulary."""

    token_ids: torch.Tensor
    features: torch.Tensor
    answer_starts: torch.Tensor
    lengths: torch.Tensor
    top_ids: torch.Tensor
    top_probs: torch.Tensor
    drafts: torch.Tensor

    def is_predicted(self, step: int) -> torch.Tensor:
        """Entries whose prediction of this step is a token of the answer: bool [B, L]."""
        places = torch.arange(self.features.shape[1])[None] + 2 + step
        return (places >= self.answer_starts[:, None]) & (places < self.lengths[:, None])


def unroll(
    head: Eagle3Head, embedding: torch.Tensor, batch: TrainingBatch, num_steps: int
) -> Iterator[torch.Tensor]:
    """Hidden states after the norm, [B, L, hidden_size], of num_steps steps. In step s, entry p has
    gone s tokens beyond the features it knows and predicts token p + 2 + s; what it drafted is
    taken to have been right. A P-EAGLE head knows neither those tokens nor what it computed of
    them.

    embedding: the target's, [V, hidden_size].
    """
    hidden, layer = head.combine(batch.features), head.layers[0]
    mask = (
        head.combine(head.mask_hidden).expand_as(hidden) if isinstance(head, PEagleHead) else None
    )
    length = hidden.shape[1]
    cos, sin = rotary_tables(head.config.layer, length + num_steps)
    keys, values = [], []
    for step in range(num_steps):
        taken = torch.arange(length) + 1 + step
        tokens = batch.token_ids[:, taken.clamp(max=batch.token_ids.shape[1] - 1)]
        if step and isinstance(head, PEagleHead):
            tokens, hidden = torch.full_like(tokens, head.mask_token_id), mask
        joined, residual = layer.attention_input(F.embedding(tokens, embedding), hidden)
        turn = cos[step : step + length], sin[step : step + length]
        query = _turned(_heads(layer.self_attn.q_proj(joined), head), *turn)
        keys.append(_turned(_heads(layer.self_attn.k_proj(joined), head), *turn))
        values.append(_heads(layer.self_attn.v_proj(joined), head))
        hidden = layer.finish(_attend(query, keys, values), residual)
        normed = head.norm(hidden)
        if head.config.norm_output:
            hidden = normed
        yield normed


def unroll_recurrent(
    head: ReDrafterHead, embedding: torch.Tensor, batch: TrainingBatch, num_steps: int
) -> Iterator[torch.Tensor]:
    """The same of a head whose state takes in the tokens one by one."""
    state, length = None, batch.features.shape[1]
    for step in range(num_steps):
        places = (torch.arange(length) + 1 + step).clamp(max=batch.token_ids.shape[1] - 1)
        state = head.next_state(F.embedding(batch.token_ids[:, places], embedding), state)
        yield head.normed(batch.features, state)


def outputs(
    head: TrainedHead, embedding: torch.Tensor, batch: TrainingBatch, num_steps: int
) -> Iterator[tuple[torch.Tensor, nn.Module]]:
    """By step, as in unroll: what the head's output embedding reads, [B, L, hidden_size], and that
    embedding."""
    if isinstance(head, MedusaHead):
        for step in range(num_steps):
            yield head.blocks[step](batch.features), head.output(step)
    else:
        steps = unroll_recurrent if isinstance(head, ReDrafterHead) else unroll
        for normed in steps(head, embedding, batch, num_steps):
            yield normed, head.lm_head


def loss_of(
    head: TrainedHead, embedding: torch.Tensor, batch: TrainingBatch, num_steps: int
) -> torch.Tensor:
    """Mean over steps of the cross entropy with the target's candidates that the draft vocabulary
    holds."""
    total = torch.zeros(())
    for step, (normed, output) in enumerate(outputs(head, embedding, batch, num_steps)):
        chosen = batch.is_predicted(step)
        log_probs = F.log_softmax(output(normed[chosen]), dim=-1)
        rows, columns = chosen.nonzero(as_tuple=True)
        ids, probs = (
            batch.top_ids[rows, columns + 2 + step],
            batch.top_probs[rows, columns + 2 + step],
        )
        weights = probs * (ids >= 0)
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-3)
        losses = -(log_probs.gather(1, ids.clamp(min=0)) * weights).sum(dim=-1)
        total = total + losses.mean() / num_steps
    return total


@torch.no_grad()
def chain_matches(
    head: TrainedHead, embedding: torch.Tensor, batch: TrainingBatch, num_steps: int
) -> torch.Tensor:
    """int64 [num_steps, 2]: the number of chains whose first s tokens are the target's, and how
    many of these also have the next token right."""
    counts = torch.zeros(num_steps, 2, dtype=torch.int64)
    right = torch.ones_like(batch.token_ids[:, 1:], dtype=torch.bool)
    for step, (normed, output) in enumerate(outputs(head, embedding, batch, num_steps)):
        right = right & batch.is_predicted(step)
        rows, columns = right.nonzero(as_tuple=True)
        matches = output(normed[right]).argmax(dim=-1) == batch.drafts[rows, columns + 2 + step]
        counts[step] = torch.tensor([len(matches), int(matches.sum())])
        right[rows, columns] = matches
    return counts


def _heads(x: torch.Tensor, head: Eagle3Head) -> torch.Tensor:
    """[B, L, heads * head_dim] -> [B, heads, L, head_dim]."""
    return x.unflatten(-1, (-1, head.config.layer.head_dim)).transpose(1, 2)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _attend(
    query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> torch.Tensor:
    """Entries see the first step's entries up to their own, and of later steps their own alone: [B,
    L, heads * dim]."""
    groups = query.shape[1] // keys[0].shape[1]
    keys = [key.repeat_interleave(groups, dim=1) for key in keys]
    values = [value.repeat_interleave(groups, dim=1) for value in values]
    length = query.shape[2]
    query = query * query.shape[-1] ** -0.5
    causal = torch.full((length, length), float("-inf")).triu(1)
    scores = [
        query @ keys[0].transpose(2, 3) + causal,
        *((query * key).sum(-1, keepdim=True) for key in keys[1:]),
    ]
    weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    attended = weights[..., :length] @ values[0]
    for index, value in enumerate(values[1:]):
        attended = attended + weights[..., length + index, None] * value
    return attended.transpose(1, 2).flatten(2)
