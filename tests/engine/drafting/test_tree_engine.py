"""Random trees in the engine: the tokens of plain decoding, through preemption, prefix hits and
other drafters."""

import numpy as np
import pytest
from random_trees import random_tree
from tiny_engine import RandomPlans, core_of, requests_of, run
from tiny_models import VOCABULARY, tiny_llama, tiny_mistral, tiny_runner

from smartspec.control.planning import no_drafts
from smartspec.control.records import DrafterSpec, Plan
from smartspec.core.batch import Draft
from smartspec.core.engine_core import EngineCore
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.runtime.executor import LiveExecutor

NUM_REQUESTS, MAX_TOKENS, K = 6, 24, 9


class RandomTrees(ModelFreeDrafter):
    """Another tree in every step; plain: what plain decoding says after each prompt."""

    spec = DrafterSpec("random-trees")

    def __init__(self, plain: dict[tuple[int, ...], list[int]]):
        super().__init__(max_draft_tokens=K)
        self.plain = plain
        self.random = np.random.default_rng(3)

    def propose(self, token_ids: np.ndarray) -> Draft:
        text = token_ids.tolist()
        prompt = next(prompt for prompt in self.plain if text[: len(prompt)] == [*prompt])
        ground_truth = self.plain[prompt][len(text) - len(prompt) :]
        return random_tree(
            self.random, int(self.random.integers(0, K + 1)), ground_truth, VOCABULARY
        )


class AnyDrafter(RandomPlans):
    """Random lengths, of random drafters."""

    def plan(self, view) -> Plan:
        view = view.queried(True)
        if not view.drafters:
            return no_drafts(view.num_rows)
        drafter = self.random.integers(0, len(view.drafters), view.num_rows)
        longest = np.minimum(view.draft_lengths[drafter, np.arange(view.num_rows)], view.row_caps)
        return Plan(lengths=self.random.integers(0, longest + 1), drafter=drafter)

    num_compared = 0  # drafts of the first drafter, where another one drafted

    def cut(self, plan, drafted):
        return self.random.integers(0, drafted.lengths + 1)

    def learn(self, plan, outcome) -> None:
        super().learn(plan, outcome)
        if outcome.free_tests:
            self.num_compared += int(outcome.free_tests[0].tested[plan.drafter > 0].sum())


def served(model, plain=None) -> tuple[dict[tuple[int, ...], list[int]], EngineCore, int]:
    """Output by prompt, the core, and how often requests were preempted."""
    drafters = ()
    if plain is not None:
        drafters = RandomTrees(plain), DraftModel(tiny_runner(model, num_slots=3), 3)
    executor = LiveExecutor(tiny_runner(model, num_slots=3), drafters)
    # Few blocks: some requests are preempted and recomputed.
    core = core_of(executor, AnyDrafter(seed=4), num_blocks=30, max_draft_tokens=K)
    random = np.random.default_rng(1)
    shared = random.integers(0, VOCABULARY, 14).tolist()  # prompts begin alike: prefixes are found
    prompts = [shared + random.integers(0, VOCABULARY, 6).tolist() for _ in range(NUM_REQUESTS)]
    requests = run(core, requests_of(prompts, max_tokens=MAX_TOKENS))
    outputs = {
        tuple(r.tokens[: r.num_prompt_tokens].tolist()): r.output_token_ids.tolist()
        for r in requests
    }
    return outputs, core, sum(request.num_preemptions for request in requests)


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_mistral])
def test_greedy_output_is_that_of_plain_decoding(make_model):
    model = make_model()
    plain, _, _ = served(model)
    outputs, core, num_preempted = served(model, plain)
    assert outputs == plain
    assert core.controller.num_accepted > NUM_REQUESTS * MAX_TOKENS // 4 and num_preempted
    assert core.controller.num_compared > 20
