"""Drafts made in vLLM's scheduler: greedy answers are those without speculation, whatever is
decided and whatever fails."""

import logging
from dataclasses import replace

import pytest
from serving import (
    ALL_DRAFTERS,
    EXECUTOR,
    IN_SCHEDULER,
    answers,
    counters,
    free_blocks,
    restless,
    scheduler_of,
    serving,
)

from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.vllm_plugin import executor

pytestmark = pytest.mark.usefixtures("seen_logs")


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    with serving(model, None) as llm:
        return answers(llm, prompts)


@pytest.mark.parametrize("options", [{}, EXECUTOR], ids=["vLLM's executor", "ours"])
def test_answers_are_those_without_speculation(
    options, model, prompts, expected, tmp_path, monkeypatch
):
    restless(monkeypatch)
    with serving(model, IN_SCHEDULER, tmp_path, ALL_DRAFTERS, **options) as llm:
        free = free_blocks(llm)
        got = answers(llm, prompts)
        speculation, counts = scheduler_of(llm).speculation, counters(llm)
        assert speculation is not None and not speculation.learner.controller.num_errors
        names = [spec.name for spec in speculation.decider.own.specs]
        assert ",".join(names) == ALL_DRAFTERS["drafter"]
        assert speculation.decider.own.drafters[2]._datastore is not None  # the model's own
        assert free_blocks(llm) == free
    assert counts["num_draft_tokens"] > 300 and counts["num_accepted_tokens"] > 50
    assert got == expected


def test_a_drafter_that_fails_leaves_vllm_without_drafts(
    model, prompts, expected, tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise RuntimeError("no idea")

    monkeypatch.setattr(PromptLookupDrafter, "propose", fail)
    with caplog.at_level(logging.WARNING), serving(model, IN_SCHEDULER, tmp_path) as llm:
        assert answers(llm, prompts[:12]) == expected[:12]
        assert not counters(llm)["num_draft_tokens"]
    assert "no idea" in caplog.text


def test_workers_that_are_not_as_expected_sample_as_vllm_does(
    model, prompts, expected, tmp_path, monkeypatch, caplog
):
    restless(monkeypatch)
    need = replace(executor.V1_RUNNER, methods={"execute_model": ["self", "something", "else"]})
    monkeypatch.setattr(executor, "V1_RUNNER", need)
    with (
        caplog.at_level(logging.WARNING),
        serving(model, IN_SCHEDULER, tmp_path, **EXECUTOR) as llm,
    ):
        assert answers(llm, prompts[:12]) == expected[:12]
    assert "execute_model takes" in caplog.text


def test_the_error_of_a_pass_is_raised(model, prompts, tmp_path):
    """Though the workers are asked for its tokens before it has ended."""
    with serving(model, IN_SCHEDULER, tmp_path, **EXECUTOR) as llm:
        llm.llm_engine.engine_core.engine_core.model_executor.collective_rpc(fail_in_the_pass)
        with pytest.raises(RuntimeError, match="no memory left"):
            answers(llm, prompts[:1])


def fail_in_the_pass(worker) -> None:
    """The worker's model fails from here on."""

    def fail(*_, **__):
        raise ValueError("no memory left")

    worker.model_runner._model_forward = fail
