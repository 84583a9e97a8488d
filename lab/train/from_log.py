"""Answers that a server has kept (`--datastore-memory`) as training rows: a head then learns from
its own traffic.

A server keeps an answer with the last PROMPT_TOKENS tokens of its prompt. These are context here,
and the rest of the row is learned from. What is in the data folder already is not taken again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lab.train.files import alone
from lab.train.generate import ROWS_PER_SHARD, without_loop
from lab.train.shards import shard_paths, write_shard
from smartspec.drafters.answer_files import read_kept
from smartspec.drafters.finished_answers import END, PROMPT_TOKENS
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.engine.models.load import load_model
from smartspec.texts.shards import TokenRow, read_shard, tokenizer_digest

MIN_ANSWER = 8  # tokens: less teaches nothing about drafts


def take_answers(model: str, log: Path, data: Path, report: Callable[[str], None]) -> None:
    """Append the answers in folder log to the shards of folder data. The server may run meanwhile.

    Raises ValueError naming the folder where it holds none, or those of another tokenizer."""
    loaded = load_model(model)
    kept = read_kept(log, quick_digest(loaded.tokenizer), loaded.vocab_size)
    with alone(data):
        known = {row.token_ids.tobytes() for path in shard_paths(data) for row in read_shard(path)}
        found = {row.token_ids.tobytes(): row for tokens in kept for row in rows_of(tokens)}
        rows = [row for key, row in found.items() if key not in known]
        for first in range(0, len(rows), ROWS_PER_SHARD):
            write_shard(
                data, rows[first : first + ROWS_PER_SHARD], tokenizer_digest(loaded.tokenizer)
            )
    num_tokens = sum(row.num_answer_tokens for row in rows)
    report(
        f"{len(rows)} answers of {num_tokens} tokens from {log}, {len(found) - len(rows)} were in "
        f"{data} already"
    )


def rows_of(tokens: np.ndarray) -> Iterator[TokenRow]:
    """The answers of one file, int32 [n] with END after each. The first one may be cut, and the
    last one torn."""
    ends = np.flatnonzero(tokens == END)
    for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        token_ids = tokens[begin:end].astype(np.int32)
        answer = token_ids[PROMPT_TOKENS:]
        answer = answer[: without_loop(answer)]
        if len(answer) >= MIN_ANSWER:
            yield TokenRow(token_ids[: PROMPT_TOKENS + len(answer)], PROMPT_TOKENS)
