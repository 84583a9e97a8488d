"""Acceptance by chance instead of by the target: for measurements of a controller alone. The text
is invalid.

As in the prototype of arXiv 2406.14066: the accepted length is drawn by repeating a trial with
chance a until it fails or the draft ends. (A length computed from its mean would be no sample of
it.) In a tree the likeliest child is the one that is tried. After the accepted tokens comes a token
of the target's own. The work of a step is that of a real one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from smartspec.core.batch import NO_DRAFT, Draft, Verification
from smartspec.core.request import Request
from smartspec.engine.sampling.randomness import ACCEPT
from smartspec.engine.sampling.sampler import request_uniform
from smartspec.engine.sampling.verification import verify


def verify_forced(
    acceptance: float, logits: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Draft]
) -> list[Verification]:
    """Verify in place of verification.verify, with the same arguments; acceptance: chance of each
    draft token."""
    if not requests:
        return []
    starts = np.cumsum([0, *(len(draft) + 1 for draft in drafts[:-1])])
    paths = [
        _drawn_path(acceptance, request, draft)
        for request, draft in zip(requests, drafts, strict=True)
    ]
    ends = [
        int(start) + 1 + (path[-1] if path else -1)
        for start, path in zip(starts, paths, strict=True)
    ]
    own = verify(logits[ends], requests, [NO_DRAFT] * len(requests))
    return [_joined(*each) for each in zip(drafts, paths, own, strict=True)]


def _drawn_path(acceptance: float, request: Request, draft: Draft) -> tuple[int, ...]:
    """The accepted nodes, root first."""
    first_child: dict[int, int] = {}
    for node, parent in enumerate(draft.parents.tolist()):
        first_child.setdefault(parent, node)
    positions = request.num_tokens + np.arange(len(draft))
    succeeds = request_uniform([request] * len(draft), positions, ACCEPT) < acceptance
    path: list[int] = []
    while (last := path[-1] if path else -1) in first_child and succeeds[len(path)]:
        path.append(first_child[last])
    return tuple(path)


def _joined(draft: Draft, path: tuple[int, ...], own: Verification) -> Verification:
    accepted = tuple(draft.token_ids[list(path)].tolist())
    nodes = None if draft.is_chain else path
    return replace(
        own,
        emitted_token_ids=accepted + own.emitted_token_ids,
        num_accepted=len(path),
        accepted_nodes=nodes,
    )
