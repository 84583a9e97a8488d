"""vLLM's other methods under lengths that never rest: greedy answers are those without speculation.

Drafters have random weights, so that nearly every draft token is rejected; acceptance is tested in
test_greedy."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from make_heads import make_dflash, make_eagle, make_eagle3, make_medusa, make_mimo
from serving import answers, counters, free_blocks, restless, scheduler_of, serving

LONGEST = 4


class LastToken:
    """A drafter for `custom_class`: the newest token, again and again."""

    def __init__(self, vllm_config):
        self._length = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        return [tokens[-1:] * self._length for tokens in sampled_token_ids]

    def load_model(self, *_, **__):
        """There is none."""


def speculation_of(method: str, folder: Path, model: str) -> dict:
    """vLLM's --speculative-config."""
    drafts = {"method": method, "num_speculative_tokens": LONGEST}
    if method == "eagle":
        return drafts | {"model": make_eagle(folder / "eagle", model)}
    if method == "eagle3":
        return drafts | {"model": make_eagle3(folder / "eagle3", model, LONGEST)}
    if method == "p-eagle":
        head = make_eagle3(folder / "p-eagle", model, LONGEST, "peagle")
        return drafts | {"method": "eagle3", "parallel_drafting": True, "model": head}
    if method == "dflash":
        return drafts | {"model": make_dflash(folder / "dflash", model, LONGEST)}
    if method == "medusa":
        return drafts | {"model": make_medusa(folder / "medusa", model, LONGEST)}
    if method == "custom_class":
        return drafts | {"model": "test_methods.LastToken"}
    return drafts


@pytest.fixture(scope="module")
def few(prompts) -> list[str]:
    return [prompt for prompt in prompts if len(prompt) < 400][:8]


@pytest.fixture(scope="module")
def mimo(model, tmp_path_factory) -> str:
    return make_mimo(tmp_path_factory.mktemp("mimo") / "model", model)


@pytest.fixture(scope="module")
def expected(few):
    """Answers of a target without speculation."""

    @cache
    def of(target: str) -> list[list[int]]:
        with serving(target, None) as llm:
            return answers(llm, few)

    return of


@pytest.mark.parametrize(
    "method", ["eagle", "eagle3", "p-eagle", "dflash", "mtp", "medusa", "suffix", "custom_class"]
)
def test_answers_are_those_without_speculation(
    method, model, mimo, few, expected, tmp_path, monkeypatch
):
    if method == "suffix" and not find_spec("arctic_inference"):
        pytest.skip("suffix decoding needs arctic-inference, which this environment has not got")
    restless(monkeypatch)
    target = mimo if method == "mtp" else model
    wanted = expected(target)
    with serving(target, speculation_of(method, tmp_path, target), tmp_path) as llm:
        free, before = free_blocks(llm), counters(llm)
        got = answers(llm, few)
        scheduler, counts = scheduler_of(llm), counters(llm) - before
        assert (
            scheduler.speculation is not None
            and not scheduler.speculation.learner.controller.num_errors
        )
        assert free_blocks(llm) == free
    assert counts["num_draft_tokens"] > 100
    assert got == wanted
