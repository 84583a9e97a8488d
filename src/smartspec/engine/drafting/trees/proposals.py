"""Proposals of a pass of a head: of every row the likeliest tokens after it."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from smartspec.engine.drafting.trees.expansion import best_children


@dataclass(frozen=True)
class Proposals:
    """The likeliest tokens after each of n rows."""

    token_ids: np.ndarray  # int64 [n, width], the target's ids, the first best
    chances: np.ndarray  # float [n, width], their probabilities
    entropy: np.ndarray  # float [n], of the whole distributions in nats

    def with_chances(self, chances: np.ndarray, depths: np.ndarray) -> "Proposals":
        """The same tokens with these chances, float [depth, rank], 0 beyond; depths: int [n], of
        each row."""
        rows, width = (
            min(len(chances), int(depths.max(initial=0)) + 1),
            min(chances.shape[1], self.chances.shape[1]),
        )
        table = np.zeros((int(depths.max(initial=0)) + 1, self.chances.shape[1]))
        table[:rows, :width] = chances[:rows, :width]
        return replace(self, chances=table[depths])

    @property
    def lists(self) -> tuple[list[list[int]], list[list[float]]]:
        """token_ids and chances. After features that are NaN the latter are no probabilities, and
        nothing could be sorted by them: they are 0 here."""
        return self.token_ids.tolist(), np.clip(np.nan_to_num(self.chances), 0.0, 1.0).tolist()


def proposals_of(logits: torch.Tensor, target_ids: torch.Tensor, width: int) -> Proposals:
    """The width likeliest tokens by logits [n, V]. target_ids: int64 [V], the target's id of each
    token, on the CPU."""
    # of no rows too, as of a pass that only fills KV
    shape = len(logits), min(width, logits.shape[1])
    in_vocabulary, chances = (np.array(of).reshape(shape) for of in best_children(logits, width))
    entropy = torch.special.entr(torch.softmax(logits.float(), dim=-1)).sum(dim=-1)
    return Proposals(
        target_ids.numpy()[in_vocabulary.astype(np.int64)], chances, entropy.cpu().numpy()
    )
