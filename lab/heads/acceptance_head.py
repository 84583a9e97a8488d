"""The acceptance head (SpecDec++, arXiv 2405.19715): a small network that says how likely a draft
token is accepted.

It reads what the head's output embedding reads, and corrects the log-odds that the head gives its
own likeliest token:

    log-odds = own * log-odds of the head's chance + w . x,   x <- x + silu(W x + b) for each block

The source's network reads the hidden state alone, and one pass later: that of the token it judges.
Ours knows the token when it is proposed, as a head's tokens are its likeliest and not drawn.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from smartspec.engine.drafting.head.checkpoint.eagle3 import read_head
from smartspec.engine.drafting.head.checkpoint.files import filled, in_floats, read_file
from smartspec.engine.drafting.head.eagle3 import Eagle3Head
from smartspec.engine.drafting.head.kinds import ACCEPTANCE
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.drafting.trees.proposals import Proposals
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

FILE = ACCEPTANCE  # beside the head's own weights, of which other engines know nothing else
BLOCK = "blocks.{}.weight"
LEAST = 1e-4  # chances are not taken to be nearer to 0 and 1


class AcceptanceHead(nn.Module):
    """size: of the hidden state. num_blocks: residual blocks. Before training it says what the head
    says."""

    def __init__(self, size: int, num_blocks: int = 1):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(num_blocks))
        self.output = nn.Linear(size, 1)
        self.own = nn.Parameter(torch.ones(1))
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Log-odds [N] that the likeliest tokens are accepted. hidden: [N, size]; chances: [N], the
        head's of them."""
        x = hidden
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.output(x).squeeze(-1) + self.own * torch.logit(chances, LEAST)

    @torch.inference_mode()
    def judged(self, proposals: Proposals, hidden: torch.Tensor) -> Proposals:
        """The same tokens. The chance of each first one is what this head says, the others share
        the rest as before, but none gets more than the first. hidden: [n, size], of the rows of the
        proposals."""
        first = torch.from_numpy(np.ascontiguousarray(proposals.chances[:, 0], dtype=np.float32))
        said = torch.sigmoid(self(hidden.float(), first.to(hidden.device))).cpu().numpy()
        rest = (1.0 - said) / np.maximum(1.0 - proposals.chances[:, 0], LEAST)
        others = np.minimum(proposals.chances[:, 1:] * rest[:, None], said[:, None])
        return replace(proposals, chances=np.concatenate([said[:, None], others], axis=1))


def read_acceptance(folder: Path, size: int) -> AcceptanceHead | None:
    """The one beside a head whose hidden states are of this size, in fp32; None where there is
    none. Raises ValueError where it is for another head, OSError where the file is damaged; both
    name it."""
    path = folder / FILE
    if not path.exists():
        return None
    weights = {name: in_floats(path, name, tensor) for name, tensor in read_file(path).items()}
    num_blocks = sum(BLOCK.format(number) in weights for number in range(len(weights)))
    try:
        return filled(path, lambda: AcceptanceHead(size, num_blocks), weights)
    except (ValueError, OSError) as error:
        raise ValueError(f"{error} (or delete {path}: the head drafts without it)") from error


class JudgedHead(Eagle3Head):
    """An EAGLE-3 head with what judges its tokens, which is no part of its passes and so none of
    its modules."""

    judge: tuple[AcceptanceHead]


def read_judged(folder: Path, target: LoadedModel) -> tuple[JudgedHead, torch.Tensor | None]:
    """Raises as read_head and read_acceptance."""
    head, embedding = read_head(
        folder, target, lambda folder, data, config, weights: partial(JudgedHead, config)
    )
    head.judge = (read_acceptance(folder, head.config.layer.hidden_size),)
    return head, embedding


class JudgedRunner(HeadRunner):
    """Passes of an EAGLE-3 head whose tokens are as likely as its acceptance head says."""

    def __init__(self, head: JudgedHead, target: ModelRunner, **options):
        self.judge = head.judge[0].to(target.device)
        super().__init__(head, target, **options)

    def _pass(self, *of_pass) -> Proposals:
        proposals = super()._pass(*of_pass)
        return self.judge.judged(proposals, self.normed)
