"""Greedy answers are those of vLLM without speculation, whatever lengths are decided; and no KV
block is lost."""

import pytest
from serving import (
    NGRAM,
    answers,
    asynchronous,
    counters,
    free_blocks,
    restless,
    scheduler_of,
    self_draft,
    serving,
)


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    with serving(model, None) as llm:
        return answers(llm, prompts)


@pytest.mark.parametrize("method", ["ngram", "self-draft"])
@pytest.mark.parametrize("is_async", [False, True])
def test_answers_are_those_without_speculation(
    method, is_async, model, prompts, expected, tmp_path, monkeypatch
):
    if method == "ngram" and is_async:
        pytest.skip("vLLM turns asynchronous scheduling off for ngram")
    restless(monkeypatch)
    if is_async:
        asynchronous(monkeypatch)
    speculation = NGRAM if method == "ngram" else self_draft(model)
    with serving(model, speculation, tmp_path) as llm:
        free, before = free_blocks(llm), counters(llm)
        got = answers(llm, prompts)
        scheduler, counts = scheduler_of(llm), counters(llm) - before
        assert (
            scheduler.speculation is not None
            and not scheduler.speculation.learner.controller.num_errors
        )
        assert (
            any("AsyncScheduler" in base.__name__ for base in type(scheduler).__mro__) == is_async
        )
        assert free_blocks(llm) == free
    assert counts["num_draft_tokens"] > 300
    if method == "self-draft":
        assert counts["num_accepted_tokens"] == counts["num_draft_tokens"]
    differing = [number for number, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    assert not differing
