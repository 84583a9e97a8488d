"""allowed_token_ids, logit_bias and bad_words of a request, made ready once for all of its
steps."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenRules:
    """is_banned: bool [n], by token id, where others than these are banned as well; None where
    every token is allowed. biased: int64 [B], each once. biases: float32 [B], theirs.

    endings: what would complete a bad word, by the tokens before it. num_before: how many tokens
    these may be, by the last of them. longest: the most they are.
    """

    is_banned: np.ndarray | None
    biased: np.ndarray
    biases: np.ndarray
    endings: dict[tuple[int, ...], tuple[int, ...]]
    num_before: dict[int, tuple[int, ...]]
    longest: int

    def completing(self, token_ids: tuple[int, ...]) -> list[int]:
        """Tokens that would complete a bad word after these, of which the last `longest` matter."""
        found = list(self.endings.get((), ()))
        if token_ids:
            for num in self.num_before.get(token_ids[-1], ()):
                found.extend(self.endings.get(token_ids[-num:], ()))
        return found


def token_rules(
    allowed: Sequence[int],
    logit_bias: Iterable[tuple[int, float]],
    bad_words: Iterable[Sequence[int]],
) -> TokenRules:
    """The rules of these options of SamplingParams."""
    is_banned = None
    if len(allowed):
        is_banned = np.ones(max(allowed) + 1, dtype=bool)
        is_banned[np.array(allowed, dtype=np.int64)] = False
    bias_of = dict(logit_bias)
    endings: dict[tuple[int, ...], set[int]] = defaultdict(set)
    num_before: dict[int, set[int]] = defaultdict(set)
    for *before, last in bad_words:
        endings[tuple(before)].add(last)
        if before:
            num_before[before[-1]].add(len(before))
    return TokenRules(
        is_banned,
        np.array(list(bias_of), dtype=np.int64),
        np.array(list(bias_of.values()), dtype=np.float32),
        {before: tuple(sorted(last)) for before, last in endings.items()},
        {token_id: tuple(sorted(nums)) for token_id, nums in num_before.items()},
        max(map(len, endings), default=0),
    )
