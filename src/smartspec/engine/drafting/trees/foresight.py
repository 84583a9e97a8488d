"""Proposals of a head for sampled requests, in view of the random numbers that decide (see
engine.sampling.race)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smartspec.core.request import Request
from smartspec.engine.drafting.trees.proposals import Proposals
from smartspec.engine.sampling.race import foreseen_chances
from smartspec.engine.sampling.randomness import position_keys
from smartspec.engine.sampling.sampler import seeds_of

NUM_FORESEEN = 12  # children of a node that are looked at: an unlikely one may be the one that wins


class Foresight:
    """The random numbers of one draft, up to num_depths tokens after the texts of the requests."""

    def __init__(self, requests: Sequence[Request], num_depths: int):
        positions = np.array(
            [[request.num_tokens] for request in requests], dtype=np.int64
        ) + np.arange(num_depths)
        self._keys = position_keys(seeds_of(requests)[:, None], positions)
        self._temperatures = np.array([request.params.temperature for request in requests])

    def of(self, proposals: Proposals, rows: list[int], depth: int) -> Proposals:
        """The same tokens by the chance that they win, the likeliest first. rows: the request of
        each row of the proposals; depth: draft tokens before them."""
        token_ids, keys = proposals.token_ids, self._keys[rows, depth]
        chances = foreseen_chances(proposals.chances, token_ids, keys, self._temperatures[rows])
        places = np.arange(len(rows))[:, None], np.argsort(-chances, axis=1, kind="stable")
        return replace(proposals, token_ids=token_ids[places], chances=chances[places])
