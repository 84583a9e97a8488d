"""Drafts that our drafters make in the scheduler: texts stay, drafts are found where texts repeat, failures cost drafts
alone."""

import logging
from itertools import chain

import numpy as np
import pytest
from toy_engine import FULL_GRAPHS, VOCABULARY, ToyEngine, make_config
from vllm.schedulers import ModelRunnerOutput

from smartspec.control import DrafterSpec
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.drafters.recycling import pack
from smartspec.sim.replay.recorded_log import RecordedLog
from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.compatibility import NO_DRAFTS
from smartspec.vllm_plugin.speculation.drafts import SHIPPED, OwnDrafters

PERIOD = 7


class Repeating(ToyEngine):
    """Texts repeat with a period, but for a share of tokens; workers draft nothing."""

    noise = 0.0

    def truth(self, name: str, position: int) -> int:
        rng = np.random.default_rng([int(name), position])
        return int(rng.integers(1000)) if rng.random() < self.noise else 100 * int(name) + position % PERIOD

    def expected(self, name: str) -> list[int]:
        prompt = self.texts[name][:20]
        return prompt + [self.truth(name, position) for position in range(20, len(self.texts[name]))]

    def _execute(self, output) -> ModelRunnerOutput:
        sampled = []
        for name in output.num_scheduled_tokens:
            drafts, request = output.scheduled_spec_decode_tokens.get(name, []), self.scheduler.requests[name]
            end = request.num_computed_tokens - len(drafts)  # counted already
            right = [self.truth(name, end + n) == draft for n, draft in enumerate([*drafts, None])]
            tokens = [self.truth(name, end + n) for n in range(right.index(False) + 1)]
            sampled.append(tokens if end >= request.num_prompt_tokens else [])
        self.verified_lengths.append([len(each) for each in output.scheduled_spec_decode_tokens.values()])
        self.num_decoding.append(len(output.num_scheduled_tokens))
        return ModelRunnerOutput({name: row for row, name in enumerate(output.num_scheduled_tokens)}, sampled)


class BesideModel(Repeating):
    """A model drafts, too."""

    def _execute(self, output) -> ModelRunnerOutput:
        made = super()._execute(output)
        self.draft_lengths.append(output.num_spec_tokens_to_schedule)
        for name, tokens in zip(output.num_scheduled_tokens, made.sampled_token_ids, strict=True):
            start = len(self.texts[name]) + len(tokens)
            right = (self._random.random(output.num_spec_tokens_to_schedule) < self.acceptance).tolist()
            self.drafts[name] = [self.truth(name, start + n) if each else VOCABULARY for n, each in enumerate(right)]
        return made


def serve(tmp_path, *, noise=0.0, max_tokens=120, settings=None) -> Repeating:
    config = make_config(tmp_path, method="custom_class", model=NO_DRAFTS, settings=settings)
    config.model_config.get_vocab_size = lambda: 1000
    engine = Repeating(Scheduler(config))
    engine.noise = noise
    for number in range(6):
        engine.add(number, 20, max_tokens)
    engine.run()
    return engine


def assert_texts_are_right(engine: Repeating) -> None:
    assert engine.scheduler.speculation is not None
    for name, text in engine.texts.items():
        assert text == engine.expected(name)


@pytest.mark.parametrize("policy", ["goodput", "fixed:4", "off"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_texts_are_those_of_the_target(tmp_path, policy, noise):
    assert_texts_are_right(serve(tmp_path, noise=noise, settings={"policy": policy}))


def test_repeated_texts_are_drafted_and_others_are_not(tmp_path):
    engine = serve(tmp_path, max_tokens=300)
    verified = list(chain.from_iterable(engine.verified_lengths[-40:-5]))
    assert np.mean(verified) > 3.5 and len(engine.verified_lengths) < 130
    (tmp_path / "noisy").mkdir()
    engine = serve(tmp_path / "noisy", noise=1.0, max_tokens=300)
    assert sum(map(sum, engine.verified_lengths[100:])) < 0.05 * sum(engine.num_decoding[100:])


def test_every_drafter_is_told_what_it_would_have_been_right_about(tmp_path):
    log = tmp_path / "log"
    serve(tmp_path, settings={"policy": "fixed:2", "decision_log": str(log), "drafter": "prompt-lookup,recycling"})
    recorded = RecordedLog(log)
    assert [drafter.name for drafter in recorded.header.drafters] == ["prompt-lookup", "recycling"]
    matched = np.array([[free.matched.sum() for free in record.outcome.free_tests] for record in recorded][40:80])
    assert (matched.sum(axis=0) > 20).all()


def test_requests_that_end_are_forgotten_and_their_answers_remembered(tmp_path):
    engine = serve(tmp_path, settings={"policy": "fixed:4"})
    engine.add(6, 20, 30)  # in its first step vLLM tells which requests have ended
    engine.run()
    own = engine.scheduler.speculation.decider.own
    assert [*own._texts] == ["6"]
    text = np.array(engine.texts["3"][:60])
    (best, *_) = own.drafters[1]._memory.of_salt("").matches(text, pack(text), 4)
    assert best.match > 4 and [*best.tokens] == engine.texts["3"][60 : 60 + len(best.tokens)]


class Failing(ModelFreeDrafter):
    spec = DrafterSpec("failing")

    def propose(self, token_ids):
        raise RuntimeError("no idea")


def test_a_drafter_that_fails_costs_drafts_alone(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(
        "smartspec.vllm_plugin.speculation.builder.make_drafters", lambda *_: OwnDrafters([Failing(max_draft_tokens=4)])
    )
    with caplog.at_level(logging.ERROR):
        engine = serve(tmp_path)
    assert_texts_are_right(engine)
    assert "no idea" in caplog.text
    assert not any(map(sum, engine.verified_lengths))


@pytest.mark.parametrize("name", ["ngram-tree", "prompt-lookup,eagle3"])
def test_what_does_not_draft_there_is_named(tmp_path, name):
    with pytest.raises(ValueError, match="does not draft in the scheduler"):
        serve(tmp_path, settings={"drafter": name})


def serve_beside_a_model(tmp_path, *, noise, acceptance, **changes) -> BesideModel:
    settings = {"drafter": "prompt-lookup,datastore"} | changes.pop("settings", {})
    config = make_config(tmp_path, method="eagle3", settings=settings, **changes)
    config.model_config.get_vocab_size = lambda: 1000
    engine = BesideModel(Scheduler(config), acceptance=acceptance, has_passes=True)
    engine.noise = noise
    for number in range(6):
        engine.add(number, 20, 300)
    engine.run()
    assert_texts_are_right(engine)
    controller = engine.scheduler.speculation.learner.controller
    assert not controller.num_errors and not controller.controller.num_ignored
    return engine


def test_beside_a_model_each_request_gets_the_better_draft(tmp_path):
    """Copies where texts repeat and the model is bad, the model's where it is good and they do not."""
    found = {}
    for name, noise, acceptance in (("copies", 0.0, 0.02), ("model", 1.0, 0.9), ("none", 1.0, 0.02)):
        (tmp_path / name).mkdir()
        engine = serve_beside_a_model(tmp_path / name, noise=noise, acceptance=acceptance)
        late = slice(len(engine.verified_lengths) // 2, -5)
        verified = sum(map(sum, engine.verified_lengths[late])) / sum(engine.num_decoding[late])
        found[name] = verified, np.mean(engine.draft_lengths[late])
    assert found["copies"][0] > 3.0 and found["copies"][1] < 0.5
    assert found["model"][0] > 2.0 and found["model"][1] > 2.0
    assert found["none"][0] < 0.3 and found["none"][1] < 0.5


@pytest.mark.parametrize("policy", ["fixed:3", "off"])
def test_beside_a_model_other_policies_work(policy, tmp_path):
    engine = serve_beside_a_model(tmp_path, noise=0.3, acceptance=0.5, settings={"policy": policy})
    assert any(map(sum, engine.verified_lengths)) == (policy != "off")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "ngram"}, f"vLLM's method ngram drafts.*{NO_DRAFTS}"),
        ({"method": "eagle3", "async_scheduling": True}, "asynchronous.*--no-async-scheduling"),
        ({"method": "eagle3", "draft_sample_method": "probabilistic"}, "draft_sample_method"),
        ({"method": "eagle3", "cudagraph_mode": FULL_GRAPHS}, "--enforce-eager"),
    ],
)
def test_where_drafts_of_the_scheduler_cannot_be_used_a_drafter_is_refused(changes, reason, tmp_path):
    config = make_config(tmp_path, settings={"drafter": "prompt-lookup"}, method=changes["method"])
    config.scheduler_config.async_scheduling = changes.get("async_scheduling", False)
    config.speculative_config.draft_sample_method = changes.get("draft_sample_method", "greedy")
    config.compilation_config.cudagraph_mode = changes.get("cudagraph_mode")
    with pytest.raises(ValueError, match=reason):
        Scheduler(config)


def test_the_package_of_heads_and_datastores_is_found():
    assert [path.parent.name for path in SHIPPED.glob("*/datastore.json")] == ["smollm2-135m-instruct"]
