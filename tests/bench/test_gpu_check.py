"""The comparison of `gpu_check.py`: what counts as a wrong answer, and which servers are
compared."""

import pytest
from gpu_check import compare, is_wrong, speculations, worst_ratio

from smartspec.vllm_plugin.compatibility import NO_DRAFTS

PLAIN = {
    "tokens": [1, 2, 3],
    "best": [{"1": -0.1, "9": -3.0}, {"2": -0.7, "8": -0.75}, {"3": -0.1}],
}


@pytest.mark.parametrize(
    ("tokens", "wrong"),
    [
        ([1, 2, 3], False),
        ([1, 8, 5], False),  # a near tie; what follows is another text
        ([9, 2, 3], True),
        ([1, 7, 3], True),  # not among the likeliest
        ([1, 2, 4], True),
        ([1, 2], True),
    ],
)
def test_an_answer_that_leaves_the_other_is_wrong_but_at_a_tie(tokens, wrong):
    assert is_wrong(PLAIN, tokens, tie=0.1) == wrong
    servers = {"off": {"answers": [PLAIN]}, "smartspec": {"answers": [{"tokens": tokens}]}}
    assert compare(servers, tie=0.1) == {"off": 0, "smartspec": int(wrong)}


def test_the_longest_length_is_smartspecs():
    found = speculations("eagle3", "HEAD", "3,1")
    head = {"method": "eagle3", "model": "HEAD"}
    assert found == {
        "off": None,
        "fixed:1": head | {"num_speculative_tokens": 1},
        "fixed:3": head | {"num_speculative_tokens": 3},
        "smartspec": head | {"num_speculative_tokens": 3},
    }
    ours = speculations("smartspec", None, "2")
    assert ours["fixed:2"]["method"] == "ngram" and ours["fixed:2"]["prompt_lookup_max"] == 4
    assert ours["smartspec"] == {"model": NO_DRAFTS, "num_speculative_tokens": 2}


def test_the_worst_cell_is_relative_to_the_best_other():
    speeds = {
        "off": {"1": 10, "8": 50},
        "fixed:3": {"1": 20, "8": 40},
        "smartspec": {"1": 22, "8": 45},
    }
    assert (
        worst_ratio({name: {"tokens_per_second": s} for name, s in speeds.items()}, ["1", "8"])
        == 0.9
    )
