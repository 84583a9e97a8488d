"""`smartspec export`: tables of lengths, in the forms that vLLM, SGLang and TensorRT-LLM
document."""

import json
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from smartspec.cli.main import _build_app
from smartspec.observation.length_tables import (
    sglang_config,
    tensorrt_llm_config,
    vllm_config,
    with_lengths,
)
from smartspec.sim.length_table import length_table
from smartspec.sim.scenario import Scenario

TABLE = [5] * 4 + [2] * 28 + [0] * 32


@pytest.mark.parametrize("max_batch", [1, 5, 64, 100])
def test_a_table_covers_every_batch_size_once(max_batch):
    table = length_table(Scenario(batch=1, model="8b", max_batch=max_batch), acceptance=0.6)
    assert len(table) == max_batch


def test_better_drafts_get_longer_and_larger_batches_shorter_lengths():
    good, bad = (
        length_table(Scenario(batch=1, drafter="lookup"), acceptance) for acceptance in (0.8, 0.2)
    )
    assert all(more >= less for more, less in zip(good, bad, strict=True)) and good != bad
    assert all(table == sorted(table, reverse=True) for table in (good, bad))


def test_vllm_takes_inclusive_ranges():
    assert vllm_config(TABLE) == {
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 32, 2], [33, 64, 0]],
    }


def test_sglang_takes_the_least_batch_size_of_every_slot():
    config = sglang_config([TABLE, [3] * 8 + [1] * 56])
    assert config == {
        "1": {"candidate_steps": [3, 5]},
        "5": {"candidate_steps": [2, 3]},
        "9": {"candidate_steps": [1, 2]},
        "33": {"candidate_steps": [0, 1]},
    }
    keys = sorted(map(int, config))
    for size in range(1, 65):  # SGLang: the largest key that is not above the batch size
        slot = config[str(keys[bisect_right(keys, size) - 1])]
        assert TABLE[size - 1] in slot["candidate_steps"]


def test_tensorrt_llm_takes_the_largest_batch_size_of_every_length():
    config = tensorrt_llm_config(TABLE)
    assert config == {"max_draft_len": 5, "draft_len_schedule": {4: 5, 32: 2}}
    keys = sorted(config["draft_len_schedule"])
    # TensorRT-LLM: the least key that is not below the batch size; beyond the last, none
    for size in range(1, 65):
        index = bisect_left(keys, size)
        assert TABLE[size - 1] == (
            config["draft_len_schedule"][keys[index]] if index < len(keys) else 0
        )


def test_tensorrt_llm_has_no_schedule_without_drafts():
    with pytest.raises(ValueError, match="leave speculation off"):
        tensorrt_llm_config([0] * 64)


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


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.sets(st.integers(1, 5), min_size=1))
def test_lengths_to_choose_from_are_all_in_the_table_and_no_others(table, lengths):
    if len(lengths) > len(table):
        with pytest.raises(ValueError, match="name fewer"):
            with_lengths(table, tuple(lengths))
        return
    positive = with_lengths(table, tuple(lengths), min(lengths))
    assert set(positive) == lengths and len(positive) == len(table)
    limited = with_lengths(table, tuple(lengths))
    assert lengths <= set(limited) <= lengths | {0} and len(limited) == len(table)
    if set(table) == lengths:
        assert limited == table
