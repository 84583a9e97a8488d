from collections import Counter

import numpy as np
import pytest

from smartspec.workload.prompts import (
    Prompt,
    draw_prompts,
    match_by_length,
    read_prompts,
    shipped_prompts,
)

GOOD = '{"id": "a", "task": "mt_bench/writing", "prompt": "Hello"}\n\n{"prompt": "Grüße"}\n'


def test_rows_are_read_in_order_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(GOOD, encoding="utf-8")
    assert read_prompts(path) == [
        Prompt("a", "mt_bench/writing", "Hello"),
        Prompt("3", "", "Grüße"),
    ]


def test_byte_order_marks_and_line_ends_of_windows_are_no_part_of_a_prompt(tmp_path):
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\ufeff" + GOOD.replace("\n", "\r\n"), encoding="utf-8", newline="")
        assert read_prompts(path) == [
            Prompt("a", "mt_bench/writing", "Hello"),
            Prompt("3", "", "Grüße"),
        ]
    assert len(read_prompts(tmp_path)) == 4


@pytest.mark.parametrize(
    "row",
    [
        b"{not json",
        b'"text"',
        b'["prompt"]',
        b"{}",
        b'{"prompt": ""}',
        b'{"prompt": 3}',
        b'{"prompt": "\xff\xfe"}',
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + row + b"\n")
    with pytest.raises(ValueError, match=r"prompts\.jsonl, line 2: "):
        read_prompts(path)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.jsonl: No such file"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="holds no prompts"):
        read_prompts(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        read_prompts(tmp_path / "empty.jsonl")


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"prompt": "last"}\n')
    (tmp_path / "a.jsonl").write_text(GOOD, encoding="utf-8")
    (tmp_path / "README.md").write_text("no prompts here")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["Hello", "Grüße", "last"]
    (tmp_path / "b.jsonl").write_text("[]\n")
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1: "):
        read_prompts(tmp_path)


def test_the_package_ships_sixteen_prompts_of_each_task_none_twice():
    prompts = shipped_prompts()
    tasks = ("chat", "code", "editing", "math", "qa", "rag", "summarization", "translation")
    assert Counter(prompt.task for prompt in prompts) == dict.fromkeys(tasks, 16)
    assert (
        len({prompt.prompt_id for prompt in prompts})
        == len({prompt.text for prompt in prompts})
        == len(prompts)
    )
    assert all(30 <= len(prompt.text) <= 3500 for prompt in prompts)


def test_drawn_prompts_repeat_only_after_all_have_come():
    prompts = [Prompt(str(i), "", "text") for i in range(5)]
    drawn = draw_prompts(prompts, 12, np.random.default_rng(0))
    assert set(drawn[:5]) == set(drawn[5:10]) == set(prompts)
    assert drawn == draw_prompts(prompts, 12, np.random.default_rng(0))
    assert drawn != draw_prompts(prompts, 12, np.random.default_rng(1))


def test_longest_text_goes_to_the_place_that_wants_the_longest():
    chosen = match_by_length(np.array([10, 400, 30]), np.array([7000, 20, 300]))
    assert chosen.tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="2 texts cannot be matched with 3"):
        match_by_length(np.arange(2), np.arange(3))
