"""Drafts that our drafters make in the scheduler: texts stay, drafts are found where texts repeat,
failures cost drafts alone."""

import logging
from itertools import chain

import numpy as np
import pytest
from toy_engine import ToyEngine, make_config

from smartspec.control import DrafterSpec
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.drafters.recycling import pack
from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.compatibility import NO_DRAFTS
from smartspec.vllm_plugin.speculation.drafts import SHIPPED, OwnDrafters

PERIOD = 7


class Repeating(ToyEngine):
    """Texts repeat with a period, but for a share of tokens; workers draft nothing."""

    noise = 0.0

    def token(self, name: str, position: int) -> int:
        rng = np.random.default_rng([int(name), position])
        if rng.random() < self.noise:
            return int(rng.integers(1000))
        return 100 * int(name) + position % PERIOD

    def _draft(self, output) -> None:
        """None."""


def serve(tmp_path, *, noise=0.0, max_tokens=120, settings=None) -> Repeating:
    config = make_config(tmp_path, method="custom_class", model=NO_DRAFTS, settings=settings)
    config.model_config.get_vocab_size = lambda: 1000
    engine = Repeating(Scheduler(config))
    engine.noise = noise
    engine.serve(*range(6), max_tokens=max_tokens)
    return engine


@pytest.mark.parametrize("policy", ["goodput", "fixed:4", "off"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_texts_are_those_of_the_target(tmp_path, policy, noise):
    engine = serve(tmp_path, noise=noise, settings={"policy": policy})
    assert engine.scheduler.speculation is not None


def test_repeated_texts_are_drafted_and_others_are_not(tmp_path):
    engine = serve(tmp_path, max_tokens=300)
    verified = list(chain.from_iterable(engine.verified_lengths[-40:-5]))
    assert np.mean(verified) > 3.5 and len(engine.verified_lengths) < 130
    (tmp_path / "noisy").mkdir()
    engine = serve(tmp_path / "noisy", noise=1.0, max_tokens=300)
    assert sum(map(sum, engine.verified_lengths[100:])) < 0.05 * sum(engine.num_decoding[100:])


def test_every_drafter_is_told_what_it_would_have_been_right_about(tmp_path):
    log = tmp_path / "log"
    serve(
        tmp_path,
        settings={
            "policy": "fixed:2",
            "decision_log": str(log),
            "drafter": "prompt-lookup,recycling",
        },
    )
    recorded = RecordedLog(log)
    assert [drafter.name for drafter in recorded.header.drafters] == ["prompt-lookup", "recycling"]
    matched = np.array(
        [[free.matched.sum() for free in record.outcome.free_tests] for record in recorded][5:40]
    )
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
        "smartspec.vllm_plugin.speculation.builder.make_drafters",
        lambda *_: OwnDrafters([Failing(max_draft_tokens=4)]),
    )
    with caplog.at_level(logging.ERROR):
        engine = serve(tmp_path)
    assert engine.scheduler.speculation is not None
    assert "no idea" in caplog.text
    assert not any(map(sum, engine.verified_lengths))


@pytest.mark.parametrize("name", ["ngram-tree", "prompt-lookup,eagle3"])
def test_what_does_not_draft_there_is_named(tmp_path, name):
    with pytest.raises(ValueError, match="does not draft in the scheduler"):
        serve(tmp_path, settings={"drafter": name})


def test_where_vllm_drafts_a_drafter_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"vLLM's method ngram drafts.*{NO_DRAFTS}"):
        Scheduler(make_config(tmp_path, settings={"drafter": "prompt-lookup"}))


def test_the_time_of_a_decision_before_a_step_is_not_taken_off_it(tmp_path, caplog):
    """After a pause, a step's time begins after its decision, for which drafters catch up with what
    was said."""
    config = make_config(tmp_path, method="custom_class", model=NO_DRAFTS, settings={"guard": 0})
    config.model_config.get_vocab_size = lambda: 1000
    engine = Repeating(Scheduler(config), seconds=(0.005, 0.0001, 0.0))
    scheduler, found = engine.scheduler, []
    add, place = scheduler.speculation.learner.costs.add, scheduler.speculation.decider.own.place

    def place_slowly(*arguments):
        engine.now += 0.03
        scheduler.speculation.decider.own.place = place
        place(*arguments)

    scheduler.speculation.learner.costs.add = lambda size: (found.append(size.seconds), add(size))
    for number in range(12):
        scheduler.speculation.decider.own.place = place_slowly
        engine.serve(number, max_tokens=20)
        scheduler.leave_speculation(False)
    assert found and min(found) > 0.004 and "failed" not in caplog.text


def test_the_package_of_heads_and_datastores_is_found():
    assert [path.parent.name for path in SHIPPED.glob("*/datastore.json")] == [
        "smollm2-135m-instruct"
    ]
