"""A start from a card: `--card`, setting `card`."""

import logging
import re
from pathlib import Path

import pytest
from json_files import change_json
from test_vllm_serve import added, made
from toy_engine import ToyEngine, make_config, run, start

from smartspec import vllm_plugin
from smartspec.observation.card import Card
from smartspec.observation.files import newest_observation

METHOD = {"method": "draft_model", "model": "/models/of/me/draft"}


@pytest.fixture
def card(tmp_path) -> Path:
    """Of a server that has observed the toy engine."""
    config = make_config(tmp_path / "first", **METHOD, settings={"policy": "observe"})
    engine = start(config)
    for number in range(8):  # fewer and fewer at a time
        engine.add(number, prompt_tokens=20, max_tokens=100 * (number + 1))
    engine.run()
    engine.scheduler.shutdown()
    path = tmp_path / "card.json"
    Card.of(newest_observation(tmp_path / "first/cache")).write(path)
    assert '"draft"' in path.read_text() and "/models" not in path.read_text()
    return path


def started(tmp_path, card, **changes):
    return vllm_plugin.Scheduler(
        make_config(tmp_path / "new", **METHOD, settings={"card": str(card)}, **changes)
    )


def test_a_new_server_starts_from_it(tmp_path, card):
    scheduler = started(tmp_path, card)
    learner = scheduler.speculation.learner
    assert learner.controller is not None  # no steps that try lengths
    expected = learner.controller.controller.acceptance.table()["draft_model"]["acceptance"]
    assert expected == pytest.approx(list(Card.read(card).acceptance), abs=0.05)
    engine = ToyEngine(scheduler)
    engine.serve(*range(4), max_tokens=100)


def test_its_step_times_are_those_of_the_engine(tmp_path, card):
    """Of steps as observed: up to 8 requests of 5 tokens, and 4 passes, of which vLLM always runs
    one. That one is in the time of the target's pass."""
    latency = started(tmp_path, card).speculation.learner.latency
    base, per_token, per_pass = 0.02, 0.001, 0.002
    (draft,) = latency.drafts
    for rows in (1, 3, 8):
        seconds = float(
            latency.target.seconds(5 * rows, 300 * rows, rows) + 3 * draft.seconds(rows, rows=rows)
        )
        assert seconds == pytest.approx(base + 5 * rows * per_token + 4 * per_pass, rel=0.05)


@pytest.mark.parametrize("fault", ["another model", "text", "missing"])
def test_a_card_that_does_not_fit_is_left_out_with_a_warning(tmp_path, card, caplog, fault):
    if fault == "another model":
        change_json(card, {"model": "other"})
    elif fault == "text":
        card.write_text("{")
    else:
        card = tmp_path / "none.json"
    scheduler = started(tmp_path, card)
    assert scheduler.speculation is not None and scheduler.speculation.learner.controller is None
    (said,) = [message for message in caplog.messages if "is not used" in message]
    assert str(card) in said and "learned from the first steps" in said


def test_own_step_times_come_first(tmp_path, card, caplog):
    run(make_config(tmp_path / "own", **METHOD), max_tokens=300)
    with caplog.at_level(logging.INFO):
        settings = {"card": str(card)}
        vllm_plugin.Scheduler(make_config(tmp_path / "own", **METHOD, settings=settings))
        started(tmp_path / "new", card)
    own, new = re.findall("step times from (.*)", caplog.text)
    assert re.fullmatch(rf"{tmp_path}/own/cache/vllm/\w+\.json", own) and new == str(card)


def test_the_command_passes_it_on(card):
    assert added(made("MODEL", "--card", str(card)))["additional"] == {
        "smartspec": {"card": str(card)}
    }
