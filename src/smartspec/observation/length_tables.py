"""Draft lengths by batch size, in the forms in which other engines take such a table. Here it is a
list: the lengths for batches of 1, 2, ... requests."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any


def with_lengths(table: list[int], lengths: tuple[int, ...], least: int = 0) -> list[int]:
    """The table with these lengths. least (0 or the shortest of them) replaces shorter ones.

    The table names all of lengths: vLLM captures graphs for lengths in its table, and a scheduler
    may then use any of them at any batch size. Lengths that are best for no batch size stand at the
    largest sizes, one each. ValueError if there are not as many batch sizes."""
    last, wanted = len(table), set(lengths)
    if len(wanted) > last:
        raise ValueError(
            f"{len(wanted)} lengths do not fit into batches of up to {last}: name fewer"
        )
    limited = [max((k for k in lengths if k <= best), default=least) for best in table]
    num_kept = max(n for n in range(last + 1) if len(wanted - set(limited[:n])) <= last - n)
    return limited[:num_kept] + sorted(wanted - set(limited[:num_kept]), reverse=True)


def vllm_config(table: list[int]) -> dict:
    """Fields of vLLM's --speculative-config beside method and model (vLLM 0.30 and later)."""
    return {
        "num_speculative_tokens": max(*table, 1),
        "num_speculative_tokens_per_batch_size": [list(row) for row in _ranges(table)],
    }


def sglang_config(tables: list[list[int]]) -> dict:
    """The file for SGLang's --speculative-adaptive-config: a slot for every batch size from which
    lengths differ, with the lengths that any of the tables (for several acceptances) names for
    it."""
    slots = _ranges(list(zip(*tables, strict=True)))
    return {str(first): {"candidate_steps": sorted({*lengths})} for first, _, lengths in slots}


def tensorrt_llm_config(table: list[int]) -> dict:
    """Fields of TensorRT-LLM's speculative_config (1.3 and later): keys are the largest batch of
    each length, and beyond the last there are no drafts. The first length must be the longest.
    ValueError if no length pays."""
    longest = table[0]
    if not longest:
        raise ValueError("no drafts are best for every batch size: leave speculation off")
    schedule = {last: min(length, longest) for _, last, length in _ranges(table) if length}
    return {"max_draft_len": longest, "draft_len_schedule": schedule}


def _ranges(by_size: list) -> Iterator[tuple[int, int, Any]]:
    """First and last batch size of each run of equal entries, and the entry."""
    last = 0
    for entry, run in groupby(by_size):
        first, last = last + 1, last + len(list(run))
        yield first, last, entry
