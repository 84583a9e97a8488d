"""The draft model as drafter, on tiny models: the target as its own draft is always right, whatever
happens."""

import numpy as np
import pytest
from tiny_engine import GREEDY_AND_SAMPLED, RandomPlans, core_of, generate, outputs
from tiny_models import VOCABULARY, tiny_llama, tiny_runner

from smartspec.control.records import Plan
from smartspec.core.engine_core import EngineCore
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.runtime.executor import LiveExecutor


class ModelController(RandomPlans):
    """Drafts of any length, whatever the draft model has room for."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.num_pauses = self.num_guessed = self.num_matches = 0

    def plan(self, view) -> Plan:
        view = view.queried(True)
        paused = self.random.random() < self.pause
        self.num_pauses += paused
        lengths = self.random.integers(0, view.row_caps + 1) * (not paused)
        return Plan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int))

    def cut(self, plan, drafted):
        return drafted.lengths

    def learn(self, plan, outcome) -> None:
        super().learn(plan, outcome)
        self.num_guessed += int(outcome.free_tests[0].tested.sum())
        self.num_matches += int(outcome.free_tests[0].matched.sum())
        if outcome.confidence is not None:
            is_drafted = np.arange(outcome.confidence.shape[1]) < outcome.drafted[:, None]
            assert (np.isfinite(outcome.confidence) == is_drafted).all()
            assert ((outcome.confidence > 0) & (outcome.confidence <= 1))[is_drafted].all()


def make_core(
    draft_seed: int, num_blocks: int = 60, seed: int = 0, rows: int = VOCABULARY, max_len: int = 128
) -> EngineCore:
    """rows, max_len: of the draft model."""
    model = tiny_llama(draft_seed)
    model.resize_token_embeddings(rows)
    draft = tiny_runner(model, max_len=max_len)
    executor = LiveExecutor(tiny_runner(), (DraftModel(draft, 4, vocab_size=VOCABULARY),))
    return core_of(executor, ModelController(seed), num_blocks)


class ShortSighted:
    """A grammar that allows every token, and cannot tell what may come after every third one of a
    draft."""

    def accept(self, token_ids):
        pass

    def allowed(self, token_ids=()):
        return np.full(VOCABULARY, not any(token_id % 3 == 0 for token_id in token_ids))


@pytest.mark.usefixtures("attention")
@GREEDY_AND_SAMPLED
@pytest.mark.parametrize("num_blocks", [60, 24])
def test_target_as_its_own_draft_is_always_accepted(temperature, num_blocks):
    core = make_core(draft_seed=0, num_blocks=num_blocks)
    requests = generate(core, temperature)
    assert core.controller.num_tested > 50
    assert core.controller.num_accepted == core.controller.num_tested
    assert core.controller.num_pauses > 3
    assert core.controller.num_matches == core.controller.num_guessed
    assert (core.controller.num_guessed > 0) == (temperature == 0.0)
    assert any(r.num_preemptions for r in requests) == (num_blocks == 24)


@pytest.mark.usefixtures("attention")
def test_another_draft_changes_no_greedy_token():
    plain = make_core(draft_seed=1)
    plain.controller.pause = 1.0
    expected = outputs(generate(plain))
    for seed in range(3):
        core = make_core(draft_seed=1, seed=seed)
        assert outputs(generate(core)) == expected
        assert core.controller.num_tested > 0
        assert core.controller.num_accepted < core.controller.num_tested


@GREEDY_AND_SAMPLED
@pytest.mark.parametrize(
    "shape", [{"rows": VOCABULARY - 20}, {"rows": VOCABULARY + 30}, {"max_len": 40}]
)
def test_a_draft_model_may_have_other_rows_or_a_shorter_context(shape, temperature):
    """llama.cpp: common_speculative_are_compatible. It drafts what it knows, and up to where its
    context ends."""
    core, rooms = make_core(draft_seed=0, **shape), []
    drafter, view = core.executor.drafters[0], core.executor.drafters[0].view

    def viewed(batch, *more):
        rooms.extend(
            zip(
                [r.num_tokens for r in batch.decoding],
                view(batch, *more).lengths.tolist(),
                strict=True,
            )
        )
        return view(batch, *more)

    drafter.view = viewed
    requests = generate(core, temperature)
    controller = core.controller
    assert controller.num_accepted > 0
    assert controller.num_accepted == controller.num_tested or shape == {"rows": VOCABULARY - 20}
    if not temperature:
        assert outputs(requests) == outputs(generate(make_core(draft_seed=0)))
    max_len = shape.get("max_len", 128)
    assert all(room == max(max_len + 1 - num, 0) for num, room in rooms)
    assert (0 in [room for _, room in rooms]) == (max_len == 40)


def test_a_stop_rule_ends_drafts_after_the_pass_it_was_called_for():
    core = make_core(draft_seed=1)
    called, drafted = [], []

    def stop(depth, rows, confidence, entropy):
        called.append(depth)
        assert len(rows) == len(confidence) == len(entropy)
        assert ((confidence > 0) & (confidence <= 1) & (entropy >= 0)).all()
        return np.full(len(rows), depth == 1)

    plan_all = lambda view: Plan(view.row_caps, np.zeros(view.num_rows, dtype=int), stop)  # noqa: E731
    core.controller.plan = plan_all
    core.controller.learn = lambda plan, outcome: drafted.extend(outcome.drafted.tolist())
    requests = generate(core)
    assert outputs(requests) == outputs(generate(make_core(draft_seed=1)))
    assert max(called) == 1 and max(drafted) == 2


@GREEDY_AND_SAMPLED
def test_a_draft_ends_after_a_token_that_the_grammar_cannot_see_past(temperature):
    """The target drafts for itself, so all that is drafted is accepted, and nothing is drafted from
    no distribution."""
    core = make_core(draft_seed=0)
    requests = generate(core, temperature, grammar=ShortSighted())
    controller = core.controller
    assert controller.num_accepted > 0 and all(request.error is None for request in requests)
    assert all(request.num_output_tokens == 25 for request in requests)
    if not temperature:
        assert outputs(requests) == outputs(generate(make_core(draft_seed=1)))
