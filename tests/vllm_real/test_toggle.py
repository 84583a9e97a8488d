"""Speculation goes off and on in the middle of requests: greedy answers stay, and there are no
drafts while off."""

import pytest
from serving import (
    EXECUTOR,
    IN_SCHEDULER,
    NGRAM,
    answers,
    asynchronous,
    counters,
    scheduler_of,
    self_draft,
    serving,
)
from vllm import SamplingParams

from smartspec.vllm_plugin import switch
from smartspec.vllm_plugin.ab.windows import WINDOW

METHODS = {
    "ngram": (NGRAM, {}),
    "drafts in the scheduler": (IN_SCHEDULER, EXECUTOR),
    "draft model": (None, {}),
    "ngram, observed": (NGRAM, {"settings": {"policy": "observe"}}),
    "draft model, asynchronous": (None, {}),
}


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    with serving(model, None) as llm:
        return answers(llm, prompts[:5])


@pytest.mark.parametrize("method", METHODS)
def test_off_and_on_in_the_middle(method, model, prompts, expected, tmp_path, monkeypatch):
    speculation, options = METHODS[method]
    if "asynchronous" in method:
        asynchronous(monkeypatch)
    path = switch.switch_path(tmp_path)
    with serving(model, speculation or self_draft(model), tmp_path, **options) as llm:
        scheduler, seen = scheduler_of(llm), []
        schedule = type(scheduler).schedule

        def schedule_and_change(self, *arguments, **more):
            step = len(seen)
            if step % 9 == 5:
                path.touch()
            elif step % 9 == 0:
                path.unlink(missing_ok=True)
            self.toggle._switch._files.wait()  # for its look
            output = schedule(self, *arguments, **more)
            seen.append(
                (self.toggle.reason, sum(map(len, output.scheduled_spec_decode_tokens.values())))
            )
            return output

        monkeypatch.setattr(type(scheduler), "schedule", schedule_and_change)
        assert answers(llm, prompts[:5]) == expected
        assert (
            scheduler.toggle is not None
            and scheduler.speculation is not None
            and not scheduler.rest.steps
        )
        off = [verified for reason, verified in seen if reason == "switch"]
        assert len(off) >= 5 and not any(off)
        assert any(verified for reason, verified in seen if reason is None)
        path.touch()
        scheduler.toggle._switch._files.wait()
        monkeypatch.setattr(type(scheduler), "schedule", schedule)
        before = counters(llm)
        assert answers(llm, prompts[:2]) == expected[:2]
        assert counters(llm) == before


def test_windows_of_act_count_what_vllm_emits(model, prompts, tmp_path):
    def answer(llm) -> int:
        """Return the tokens of six answers."""
        outputs = llm.chat(
            [[{"role": "user", "content": text}] for text in prompts[:6]],
            SamplingParams(temperature=0.0, max_tokens=30),
            use_tqdm=False,
        )
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    with serving(model, NGRAM, tmp_path, {"act": True}) as llm:
        toggle = scheduler_of(llm).toggle
        for _ in range(20):  # until the controller decides: windows begin then
            if toggle._meter.is_measuring:
                break
            answer(llm)
        counted, finish = [], toggle._meter.finish_step

        def count(now, tokens, *rest, **more):
            counted.append(tokens)
            finish(now, tokens, *rest, **more)

        toggle._meter.finish_step = count
        num_tokens = answer(llm)
        assert sum(counted) == num_tokens > 0
        assert toggle.reason in (None, WINDOW)
