import numpy as np
import pytest

from smartspec.workload.prompts import (
    Prompt,
    draw_prompts,
    match_by_length,
    read_prompts,
)

GOOD = '{"id": "a", "task": "mt_bench/writing", "prompt": "Hello"}\n\n{"prompt": "Grüße"}\n'


@pytest.mark.parametrize("text", [GOOD, "\ufeff" + GOOD.replace("\n", "\r\n")])
def test_rows_are_read_in_order_without_blank_lines_byte_order_marks_and_line_ends(tmp_path, text):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_prompts(path) == [
        Prompt("a", "mt_bench/writing", "Hello"),
        Prompt("3", "", "Grüße"),
    ]


BAD = (
    b"{not json", b'"text"', b'["prompt"]', b"{}", b'{"prompt": ""}', b'{"prompt": 3}',
    b'{"prompt": "\xff\xfe"}',
)  # fmt: skip


@pytest.mark.parametrize("row", BAD)
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


def test_drawn_prompts_repeat_only_after_all_have_come():
    prompts = [Prompt(str(i), "", "text") for i in range(5)]
    drawn = draw_prompts(prompts, 12, np.random.default_rng(0))
    assert set(drawn[:5]) == set(drawn[5:10]) == set(prompts)
    assert drawn == draw_prompts(prompts, 12, np.random.default_rng(0))
    assert drawn != draw_prompts(prompts, 12, np.random.default_rng(1))


def test_longest_text_goes_to_the_place_that_wants_the_longest():
    chosen = match_by_length(np.array([10, 400, 30]), np.array([7000, 20, 300]))
    assert chosen.tolist() == [1, 0, 2]
