"""Little memory, callers that leave, controllers that fail, files that lie: answers stay, and
blocks come back."""

import logging

import pytest
import vllm
from prometheus_client.parser import text_string_to_metric_families
from serving import (
    ALL_DRAFTERS,
    EXECUTOR,
    IN_SCHEDULER,
    NGRAM,
    answers,
    counters,
    free_blocks,
    restless,
    scheduler_of,
    serving,
)
from vllm import SamplingParams

from smartspec.control import Controller
from smartspec.vllm_plugin.costs.sources import CostFile
from smartspec.vllm_plugin.speculation import builder

pytestmark = pytest.mark.usefixtures("seen_logs")
DRAFTS = {"ngram": (NGRAM, None), "drafts in the scheduler": (IN_SCHEDULER, ALL_DRAFTERS)}


@pytest.fixture(scope="module")
def few(prompts) -> list[str]:
    return prompts[:12]


@pytest.fixture(scope="module")
def expected(model, few) -> list[list[int]]:
    with serving(model, None) as llm:
        return answers(llm, few)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_preemption(drafts, model, few, expected, tmp_path, monkeypatch):
    restless(monkeypatch)
    little = {"block_size": 32, "num_gpu_blocks_override": 24, "max_model_len": 512}
    speculation, settings = DRAFTS[drafts]
    with serving(model, speculation, tmp_path, settings, **little) as llm:
        free = free_blocks(llm)
        assert answers(llm, few) == expected
        preemptions = next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions")
        assert preemptions > 0
        assert free_blocks(llm) == free
        assert scheduler_of(llm).speculation is not None


@pytest.mark.parametrize("drafts", DRAFTS)
def test_aborted_requests_leave_nothing_in_memory(drafts, model, few, tmp_path, monkeypatch):
    restless(monkeypatch)
    speculation, settings = DRAFTS[drafts]
    with serving(model, speculation, tmp_path, settings) as llm:
        free, engine = free_blocks(llm), llm.llm_engine
        for number, prompt in enumerate(few):
            engine.add_request(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=60))
        for step in range(200):
            if step % 5 == 0:
                engine.abort_request([str(step // 5)])
            engine.step()
            if not engine.has_unfinished_requests():
                break
        answers(llm, few[:1])
        speculation = scheduler_of(llm).speculation
        assert free_blocks(llm) == free
        assert len(speculation.decider.callers._known) <= 1 and not speculation._steps
        if own := speculation.decider.own:
            assert len(own._texts) <= 1


def test_counters_are_those_of_vllm(model, few, expected, tmp_path):
    with serving(model, NGRAM, tmp_path) as llm:
        before = counters(llm)
        assert answers(llm, few) == expected
        after = counters(llm)
    (path,) = (tmp_path / "vllm").glob("*.prom")
    ours = {
        s.name: s.value
        for family in text_string_to_metric_families(path.read_text())
        for s in family.samples
    }
    assert (
        ours["smartspec_verified_tokens_total"]
        == after["num_draft_tokens"] - before["num_draft_tokens"]
        > 0
    )
    assert (
        ours["smartspec_accepted_tokens_total"]
        == after["num_accepted_tokens"] - before["num_accepted_tokens"]
        > 0
    )


def test_a_failing_controller_and_a_corrupt_cost_file(
    model, few, expected, tmp_path, monkeypatch, caplog
):
    class Failing(Controller):
        def learn(self, plan, outcome):
            super().learn(plan, outcome)
            if outcome.verified.sum() > 3:
                raise RuntimeError("enough")

    monkeypatch.setattr(builder, "Controller", Failing)
    monkeypatch.setattr(CostFile, "path", property(lambda self: tmp_path / "costs.json"))
    (tmp_path / "costs.json").write_text("{")
    with caplog.at_level(logging.WARNING), serving(model, NGRAM, tmp_path) as llm:
        assert answers(llm, few) == expected
        controller = scheduler_of(llm).speculation.learner.controller
        assert controller.errors["RuntimeError: enough"] > 0
    assert "is unusable" in caplog.text and "the controller failed" in caplog.text


@pytest.mark.parametrize(("speculation", "options"), [(NGRAM, {}), (IN_SCHEDULER, EXECUTOR)])
def test_an_unknown_version(
    speculation, options, model, few, expected, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with (
        caplog.at_level(logging.WARNING),
        serving(model, speculation, tmp_path, **options) as llm,
    ):
        assert type(scheduler_of(llm)).__module__ == "vllm.v1.core.sched.scheduler"
        assert answers(llm, few) == expected
    assert "vLLM 0.99.0 is untested" in caplog.text and "SMARTSPEC_UNTESTED=1" in caplog.text
