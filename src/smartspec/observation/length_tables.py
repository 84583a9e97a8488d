"""Draft lengths by batch size, in the forms in which other engines take such a table."""

from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class LengthRange:
    """Draft tokens for batches of first to last requests."""

    first: int
    last: int
    length: int


def ranges_of(by_size: list[int]) -> list[LengthRange]:
    """The ranges of batch sizes, from the length for batches of 1, 2, ... requests; neighbours of
    one length merged."""
    ranges, last = [], 0
    for length, run in groupby(by_size):
        first, last = last + 1, last + len(list(run))
        ranges.append(LengthRange(first, last, length))
    return ranges


def lengths_by_size(table: list[LengthRange]) -> list[int]:
    """Inverse of ranges_of."""
    return [each.length for each in table for _ in range(each.first, each.last + 1)]


def with_lengths(
    table: list[LengthRange], lengths: tuple[int, ...], least: int = 0
) -> list[LengthRange]:
    """The table with these lengths. least (0 or the shortest of them) replaces shorter ones.

    The table names all of lengths: vLLM captures graphs for lengths in its table, and a scheduler
    may then use any of them at any batch size. Lengths that are best for no batch size stand at the
    largest sizes, one each. ValueError if there are not as many batch sizes."""
    last, wanted = table[-1].last, set(lengths)
    if len(wanted) > last:
        raise ValueError(
            f"{len(wanted)} lengths do not fit into batches of up to {last}: name fewer"
        )
    by_size = [
        max((k for k in lengths if k <= best), default=least) for best in lengths_by_size(table)
    ]
    num_kept = max(n for n in range(last + 1) if len(wanted - set(by_size[:n])) <= last - n)
    missing = sorted(wanted - set(by_size[:num_kept]), reverse=True)
    return ranges_of(by_size[:num_kept] + missing)


def without_zeros(table: list[LengthRange]) -> list[LengthRange]:
    """The table with a length of 1 where it says 0, neighbours of one length merged."""
    return ranges_of([max(length, 1) for length in lengths_by_size(table)])


def vllm_config(table: list[LengthRange]) -> dict:
    """Fields of vLLM's --speculative-config beside method and model (vLLM 0.30 and later)."""
    return {
        "num_speculative_tokens": max(max(r.length for r in table), 1),
        "num_speculative_tokens_per_batch_size": [[r.first, r.last, r.length] for r in table],
    }


def sglang_config(tables: list[list[LengthRange]]) -> dict:
    """The file for SGLang's --speculative-adaptive-config: a slot for every batch size from which
    lengths differ, with the lengths that any of the tables (for several acceptances) names for
    it."""
    starts = sorted({r.first for table in tables for r in table})
    by_size = list(map(lengths_by_size, tables))
    slots = {start: sorted({lengths[start - 1] for lengths in by_size}) for start in starts}
    return {str(start): {"candidate_steps": steps} for start, steps in slots.items()}


def tensorrt_llm_config(table: list[LengthRange]) -> dict:
    """Fields of TensorRT-LLM's speculative_config (1.3 and later): keys are the largest batch of
    each length, and beyond the last there are no drafts. The first length must be the longest.
    ValueError if no length pays."""
    longest = table[0].length
    if not longest:
        raise ValueError("no drafts are best for every batch size: leave speculation off")
    schedule = {r.last: min(r.length, longest) for r in table if r.length}
    return {"max_draft_len": longest, "draft_len_schedule": schedule}
