"""Batches of training rows: a few shards in memory at a time, rows of like length together."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from lab.train.shards import shard_paths
from lab.train.signals import NUM_CANDIDATES, Signals, read_signals, signals_of
from lab.train.unroll import TrainingBatch
from smartspec.texts.shards import TokenRow, read_shard

SHARDS_IN_MEMORY = 6
TOKENS_PER_BATCH = 1024
HELD_OUT_EVERY = 32  # of every so many rows of a shard, the first is kept from training

Row = tuple[TokenRow, Signals]


def read_part(shard: Path, held_out: bool) -> list[Row]:
    """The rows of one shard that are for training, or those that are held out."""
    rows = read_shard(shard)
    pairs = list(zip(rows, read_signals(signals_of(shard), rows), strict=True))
    return [pair for index, pair in enumerate(pairs) if (index % HELD_OUT_EVERY == 0) == held_out]


def held_out_rows(data: Path, num_rows: int) -> list[Row]:
    """Up to num_rows rows that are kept from training, of shards from all over the data."""
    rows: list[Row] = []
    paths = shard_paths(data)
    for number in np.random.default_rng(0).permutation(len(paths)):
        rows += read_part(paths[number], True)
        if len(rows) >= num_rows:
            break
    return rows[:num_rows]


def epoch(
    data: Path, num_shards: int, draft_ids: np.ndarray, seed: int, skip: int
) -> Iterator[TrainingBatch]:
    """Every training row of the first num_shards shards once, in an order drawn from seed; the
    first skip batches are left out. draft_ids: int64 [V], a token's id in the draft vocabulary, -1
    where it has none."""
    rng = np.random.default_rng(seed)
    paths = shard_paths(data)[:num_shards]  # fewer where some were deleted since they were counted
    order = rng.permutation(len(paths))
    for begin in range(0, len(paths), SHARDS_IN_MEMORY):
        part = order[begin : begin + SHARDS_IN_MEMORY]
        rows = [row for number in part for row in read_part(paths[number], False)]
        batches = grouped(rows, rng)
        for batch in batches[skip:]:
            yield collate(batch, draft_ids)
        skip = max(0, skip - len(batches))
        # before the next ones are read: a shard of the default model takes 70 MB
        rows = batches = []


def grouped(rows: Sequence[Row], rng: np.random.Generator) -> list[list[Row]]:
    """Batches of rows of like length, in random order."""
    batches: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row[0].token_ids)):
        if batches[-1] and len(row[0].token_ids) * (len(batches[-1]) + 1) > TOKENS_PER_BATCH:
            batches.append([])
        batches[-1].append(row)
    return [batches[i] for i in rng.permutation(len(batches))] if rows else []


def collate(rows: Sequence[Row], draft_ids: np.ndarray) -> TrainingBatch:
    """Rows padded to the longest."""
    longest = max(len(row.token_ids) for row, _ in rows)
    token_ids = np.zeros((len(rows), longest), dtype=np.int64)
    features = np.zeros((len(rows), longest - 1, rows[0][1].features.shape[1]), dtype=np.float32)
    top_ids = np.full((len(rows), longest, NUM_CANDIDATES), -1, dtype=np.int64)
    top_probs = np.zeros((len(rows), longest, NUM_CANDIDATES), dtype=np.float32)
    for index, (row, signals) in enumerate(rows):
        answer = slice(row.answer_start, len(row.token_ids))
        token_ids[index, : len(row.token_ids)] = row.token_ids
        features[index, : len(signals.features)] = signals.features
        num = signals.top_ids.shape[1]
        top_ids[index, answer, :num] = draft_ids[signals.top_ids]
        top_probs[index, answer, :num] = signals.top_probs
    starts = np.array([row.answer_start for row, _ in rows])
    lengths = np.array([len(row.token_ids) for row, _ in rows])
    arrays = (token_ids, features, starts, lengths, top_ids, top_probs, draft_ids[token_ids])
    return TrainingBatch(*map(torch.from_numpy, arrays))
