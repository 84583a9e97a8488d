"""Acceptance in trees whose tokens were drawn: multi-round speculative sampling.

The children of a node are tried in the order they were drawn. A child with token x, drawn from q (which excludes what
the children drawn before it took, where they are drawn without replacement), is accepted with probability min(1, p(x) /
q(x)); if it is not, p becomes norm(max(p - q, 0)), the distribution of what is then still owed, and the next child is
tried. What is left of p after the last child gives the recovered token. By induction over the children, what is emitted
has the target's distribution (Leviathan et al. 2023, applied once a child; SpecInfer, arXiv 2305.09781; Sequoia, arXiv
2402.12374).
"""

import numpy as np
import torch

from smartspec.core.batch import Draft
from smartspec.core.request import Request
from smartspec.engine.sampling.randomness import ACCEPT, PURPOSES, SAMPLE
from smartspec.engine.sampling.sampler import NO_TOKEN, request_uniform, sample_from_probs


def walk_drawn(
    draft: Draft, request: Request, target_probs: torch.Tensor, own_token_ids: np.ndarray
) -> tuple[list[int], int]:
    """The nodes that are accepted, root first, and the token after them (NO_TOKEN if the target has none there).

    target_probs: [k + 1, V], of the text and of each node; own_token_ids: int [k + 1], drawn from them. draft.probs[j]:
    what node j was drawn from.
    """
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        position = request.num_tokens + len(path)
        children = np.flatnonzero(draft.parents == node).tolist()
        accepted, residual = _try_children(draft, request, position, children, target_probs[node + 1])
        if accepted is not None:
            path.append(accepted)
            continue
        token = int(own_token_ids[node + 1])
        if children and token != NO_TOKEN:
            u = request_uniform([request], np.array([position]), SAMPLE)
            token = int(sample_from_probs(residual[None], u))
        return path, token


def _try_children(
    draft: Draft, request: Request, position: int, children: list[int], target_probs: torch.Tensor
) -> tuple[int | None, torch.Tensor]:
    """The child that is accepted, None if there is none, and what is left of the target's distribution [V]."""
    residual = target_probs
    for number, child in enumerate(children):
        token, draft_probs = int(draft.token_ids[child]), draft.probs[child]
        u = request_uniform([request], np.array([position]), ACCEPT + PURPOSES * number).item()
        draft_prob = float(draft_probs[token])
        if draft_prob > 0 and u * draft_prob < float(residual[token]):
            return child, residual
        left = (residual - draft_probs).clamp_(min=0)
        if (mass := left.sum()) > 0:  # else rounding left nothing
            residual = left / mass
    return None, residual
