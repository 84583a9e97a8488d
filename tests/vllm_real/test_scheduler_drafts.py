"""Drafts made in vLLM's scheduler: greedy answers are those without speculation, whatever is
decided and whatever fails."""

import logging
from dataclasses import replace

import pytest
import vllm
from serving import (
    EXECUTOR,
    IN_SCHEDULER,
    answers,
    counters,
    free_blocks,
    restless,
    scheduler_of,
    serving,
)
from vllm import SamplingParams

from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.vllm_plugin import executor

ALL = {"drafter": "prompt-lookup,recycling,datastore"}


@pytest.fixture(autouse=True)
def seen_logs(monkeypatch):
    """vLLM's logger keeps what it says to itself."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    with serving(model, None) as llm:
        return answers(llm, prompts)


@pytest.mark.parametrize("options", [{}, EXECUTOR], ids=["vLLM's executor", "ours"])
def test_answers_are_those_without_speculation(
    options, model, prompts, expected, tmp_path, monkeypatch
):
    restless(monkeypatch)
    with serving(model, IN_SCHEDULER, tmp_path, ALL, **options) as llm:
        free = free_blocks(llm)
        got = answers(llm, prompts)
        speculation, counts = scheduler_of(llm).speculation, counters(llm)
        assert speculation is not None and not speculation.learner.controller.num_errors
        assert [spec.name for spec in speculation.decider.own.specs] == ALL["drafter"].split(",")
        assert speculation.decider.own.drafters[2]._datastore is not None  # the model's own
        assert free_blocks(llm) == free
    assert counts["num_draft_tokens"] > 300 and counts["num_accepted_tokens"] > 50
    assert got == expected


def test_preemption(model, prompts, expected, tmp_path, monkeypatch):
    restless(monkeypatch)
    with serving(
        model,
        IN_SCHEDULER,
        tmp_path,
        ALL,
        block_size=32,
        num_gpu_blocks_override=24,
        max_model_len=512,
    ) as llm:
        free = free_blocks(llm)
        assert answers(llm, prompts[:12]) == expected[:12]
        assert next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions") > 0
        assert free_blocks(llm) == free


def test_aborted_requests_leave_nothing_in_memory(model, prompts, tmp_path, monkeypatch):
    restless(monkeypatch)
    with serving(model, IN_SCHEDULER, tmp_path, ALL) as llm:
        free, engine = free_blocks(llm), llm.llm_engine
        for number, prompt in enumerate(prompts[:12]):
            engine.add_request(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=60))
        for step in range(200):
            if step % 5 == 0:
                engine.abort_request([str(step // 5)])
            engine.step()
            if not engine.has_unfinished_requests():
                break
        answers(llm, prompts[:1])
        assert free_blocks(llm) == free
        assert len(scheduler_of(llm).speculation.decider.own._texts) <= 1


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


def test_an_unknown_version(model, prompts, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with (
        caplog.at_level(logging.WARNING),
        serving(model, IN_SCHEDULER, tmp_path, **EXECUTOR) as llm,
    ):
        assert type(scheduler_of(llm)).__module__ == "vllm.v1.core.sched.scheduler"
        assert answers(llm, prompts[:12]) == expected[:12]
    assert "vLLM 0.99.0 is untested" in caplog.text
