"""The tokens a head can draft: those the target is likeliest to emit."""

from pathlib import Path

import numpy as np

from lab.train.shards import shard_paths
from lab.train.signals import read_signals, signals_of
from smartspec.texts.shards import read_shard


def draft_vocabulary(data: Path, size: int, vocab_size: int) -> np.ndarray:
    """The size tokens on which the target put most probability over all answers, ascending: int64
    [size].

    The probability of candidates counts, not only what was drawn: that tells frequencies from
    twenty times the events.
    """
    mass = np.zeros(vocab_size)
    for path in shard_paths(data):
        rows = read_shard(path)
        for row, signals in zip(rows, read_signals(signals_of(path), rows), strict=True):
            np.add.at(mass, signals.top_ids, signals.top_probs.astype(np.float64))
            np.add.at(mass, row.token_ids, 0.1)  # what prompts hold is likely to come up in answers
    order = np.argsort(-mass, kind="stable")
    return np.sort(order[: min(size, vocab_size)]).astype(np.int64)


def coverage(data: Path, target_ids: np.ndarray) -> float:
    """Share of the answers' tokens that the draft vocabulary holds."""
    answers = np.concatenate(
        [r.token_ids[r.answer_start :] for p in shard_paths(data) for r in read_shard(p)]
    )
    return float(np.isin(answers, target_ids).mean())
