"""`smartspec export`: tables of lengths, in the forms that vLLM, SGLang and TensorRT-LLM
document."""

import itertools
import json
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from smartspec.cli.main import _build_app
from smartspec.observation.length_tables import (
    LengthRange,
    sglang_config,
    tensorrt_llm_config,
    vllm_config,
    with_lengths,
    without_zeros,
)
from smartspec.sim.length_table import length_table
from smartspec.sim.scenario import Scenario

TABLE = [LengthRange(1, 4, 5), LengthRange(5, 32, 2), LengthRange(33, 64, 0)]


def lookup(table: list[LengthRange], batch_size: int) -> int:
    return next(r.length for r in table if r.first <= batch_size <= r.last)


@pytest.mark.parametrize("max_batch", [1, 5, 64, 100])
def test_a_table_covers_every_batch_size_once(max_batch):
    table = length_table(Scenario(batch=1, model="8b", max_batch=max_batch), acceptance=0.6)
    assert [r.first for r in table] == [1, *(r.last + 1 for r in table[:-1])]
    assert table[-1].last == max_batch
    assert all(a.length != b.length for a, b in itertools.pairwise(table))


def test_better_drafts_get_longer_and_larger_batches_shorter_lengths():
    good, bad = (
        length_table(Scenario(batch=1, drafter="lookup"), acceptance) for acceptance in (0.8, 0.2)
    )
    assert all(lookup(good, size) >= lookup(bad, size) for size in (1, 8, 64, 256))
    assert all(a.length > b.length for table in (good, bad) for a, b in itertools.pairwise(table))


def test_vllm_takes_inclusive_ranges():
    assert vllm_config(TABLE) == {
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 32, 2], [33, 64, 0]],
    }


def test_sglang_takes_the_least_batch_size_of_every_slot():
    config = sglang_config([TABLE, [LengthRange(1, 8, 3), LengthRange(9, 64, 1)]])
    assert config == {
        "1": {"candidate_steps": [3, 5]},
        "5": {"candidate_steps": [2, 3]},
        "9": {"candidate_steps": [1, 2]},
        "33": {"candidate_steps": [0, 1]},
    }
    keys = sorted(map(int, config))
    for size in range(1, 65):  # SGLang: the largest key that is not above the batch size
        assert (
            lookup(TABLE, size)
            in config[str(keys[bisect_right(keys, size) - 1])]["candidate_steps"]
        )


def test_tensorrt_llm_takes_the_largest_batch_size_of_every_length():
    config = tensorrt_llm_config(TABLE)
    assert config == {"max_draft_len": 5, "draft_len_schedule": {4: 5, 32: 2}}
    keys = sorted(config["draft_len_schedule"])
    # TensorRT-LLM: the least key that is not below the batch size; beyond the last, none
    for size in range(1, 65):
        index = bisect_left(keys, size)
        assert lookup(TABLE, size) == (
            config["draft_len_schedule"][keys[index]] if index < len(keys) else 0
        )


def test_tensorrt_llm_has_no_schedule_without_drafts():
    with pytest.raises(ValueError, match="leave speculation off"):
        tensorrt_llm_config([LengthRange(1, 64, 0)])


def export(line: str):
    return CliRunner().invoke(_build_app(), ["export", *line.split()])


def entries(engine: str, config: dict) -> tuple[list[int], int]:
    """The lengths of a printed table, and the largest batch that it names."""
    if engine == "vllm":
        rows = config["num_speculative_tokens_per_batch_size"]
        return [length for *_, length in rows], rows[-1][1]
    if engine == "sglang":
        return [length for slot in config.values() for length in slot["candidate_steps"]], 2**31
    return list(config["draft_len_schedule"].values()), max(map(int, config["draft_len_schedule"]))


@pytest.mark.parametrize("drafter", ["model", "head", "lookup"])
@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_no_length_of_0_is_written_unless_allowed(engine, acceptance, drafter):
    """Also none that is implied: TensorRT-LLM drafts nothing beyond the last key."""
    line = f"{engine} --acceptance {acceptance} --max-batch 500 --drafter {drafter}"
    result = export(line)
    lengths, largest = entries(engine, json.loads(result.stdout))
    assert min(lengths) >= 1 and largest >= 500
    allowed = export(f"{line} --allow-zero")
    if acceptance == 0.0 and engine == "tensorrt-llm":
        assert "leave speculation off" in str(allowed.exception)
        assert (
            "no drafts are best for some batches of 1 to 500 requests, and 1 is written"
            in result.stderr
        )
        return
    lengths, largest = entries(engine, json.loads(allowed.stdout))
    has_zero = 0 in lengths or largest < 500
    assert (
        has_zero
        == ("no drafts are best" in allowed.stderr)
        == ("no drafts are best" in result.stderr)
    )
    assert has_zero == ("--allow-zero writes 0" in result.stderr)
    assert ("no harm to a lookup" in result.stderr) == (has_zero and drafter == "lookup")
    if not has_zero:
        assert allowed.stdout == result.stdout


def test_lengths_to_choose_from_have_a_0_if_allowed():
    line = "vllm --acceptance 0.2 --lengths 3,5 --max-batch 64"
    tables = [
        json.loads(export(line + more).stdout)["num_speculative_tokens_per_batch_size"]
        for more in ("", " --allow-zero")
    ]
    assert tables == [[[1, 63, 3], [64, 64, 5]], [[1, 62, 0], [63, 63, 5], [64, 64, 3]]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_zeros_become_ones_and_nothing_else_changes(by_size):
    table = without_zeros(
        [LengthRange(size, size, length) for size, length in enumerate(by_size, 1)]
    )
    assert [r.length for r in table for _ in range(r.first, r.last + 1)] == [
        max(length, 1) for length in by_size
    ]
    assert all(a.length != b.length and a.last + 1 == b.first for a, b in itertools.pairwise(table))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.sets(st.integers(1, 5), min_size=1))
def test_lengths_to_choose_from_are_all_in_the_table_and_no_others(by_size, lengths):
    table = [LengthRange(size, size, length) for size, length in enumerate(by_size, 1)]
    if len(lengths) > len(table):
        with pytest.raises(ValueError, match="name fewer"):
            with_lengths(table, tuple(lengths))
        return
    positive = with_lengths(table, tuple(lengths), min(lengths))
    assert {r.length for r in positive} == lengths and positive[-1].last == len(table)
    limited = with_lengths(table, tuple(lengths))
    assert lengths <= {r.length for r in limited} <= lengths | {0}
    assert [limited[0].first, limited[-1].last] == [1, len(table)]
    assert all(before.last + 1 == after.first for before, after in itertools.pairwise(limited))
    if set(by_size) == lengths:
        assert [r.length for r in limited for _ in range(r.first, r.last + 1)] == by_size
