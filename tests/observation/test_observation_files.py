"""Observations, cards and tables as files."""

import json
import os
import stat
import subprocess
import sys
from itertools import pairwise

import pytest
from engines import SETUP, observe
from json_files import change_json, read_json

from smartspec.observation.acceptance import acceptance_by_depth, draft_of
from smartspec.observation.card import Card
from smartspec.observation.files import observation_path, read_observation, write_json
from smartspec.observation.records import COLUMNS, MAX_CLASSES, DraftOutcome, Observation
from smartspec.vllm_plugin.observed.__main__ import main

CELLS = [(1, 3), (16, 3), (16, 1)]


@pytest.fixture(scope="module")
def observation() -> Observation:
    return observe(CELLS, rates={"": 0.8, "code": 0.5})


@pytest.fixture
def file(tmp_path, observation):
    path = observation_path(tmp_path, "abc", 0)
    write_json(path, observation.to_dict())
    return path


def same(a: Observation, b: Observation) -> bool:
    return json.dumps(a.to_dict()) == json.dumps(b.to_dict())


def test_a_file_holds_all_of_it(observation, file):
    assert same(read_observation(file), observation)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no JSON"),
        ("[]", "no observation"),
        ('{"kind": "smartspec-observation", "format": 99}', "another version"),
    ],
)
def test_what_is_none_is_named(tmp_path, text, says, capsys):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error and str(path) in error


@pytest.mark.parametrize("change", ["cells", "outcomes", "arrivals", "setup"])
def test_a_part_that_is_missing_is_corrupt(file, change):
    data = read_json(file)
    del data[change]
    with pytest.raises(ValueError, match="corrupt"):
        Observation.from_dict(data)


@pytest.mark.parametrize("value", [float("nan"), -1.0, "x"])
def test_sums_that_cannot_be_are_corrupt(observation, value):
    data = observation.to_dict()
    data["cells"][0][COLUMNS.index("seconds")] = value
    with pytest.raises(ValueError):
        Observation.from_dict(data)


def test_nothing_to_read(tmp_path, capsys):
    assert main(["--cache", str(tmp_path)]) == 2
    assert "--observe" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err


def test_it_needs_numpy_alone(file):
    blocked = "prometheus_client", "typer", "rich", "vllm", "torch", "httpx"
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"
    code += "; from smartspec.vllm_plugin.observed.__main__ import main"
    command = [sys.executable, "-c", f"{code}; sys.exit(main([{str(file)!r}]))"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "goodput" in ran.stdout, ran.stderr


def test_many_classes_are_one():
    found = Observation({})
    found.add_outcomes((DraftOutcome(f"class {n}", 3, 3, 1), 1) for n in range(MAX_CLASSES + 50))
    assert (
        len(found.by_class) == MAX_CLASSES + 1 and sum(found.outcomes.values()) == MAX_CLASSES + 50
    )


def test_engines_side_by_side_add_up(observation):
    both = Observation.merged([observation, observation])
    assert both.num_steps == 2 * observation.num_steps
    assert both.arrivals.requests == 2 * observation.arrivals.requests
    assert both.arrivals.seconds == observation.arrivals.seconds


def test_acceptance_of_other_lengths_counts_the_steps_that_they_would_take():
    """Of longer drafts, requests that accept more take fewer steps."""
    rates = {"good": 0.9, "bad": 0.3}
    found = draft_of(observe([(16, 5)], rates=rates), 1)
    tokens = {name: sum(rate**d for d in range(6)) for name, rate in rates.items()}
    steps = sum(tokens[name] / (1 + rate) for name, rate in rates.items())
    assert 1 + found.accepted == pytest.approx(sum(tokens.values()) / steps, rel=0.01)
    assert found.known == "between"


def test_acceptance_beyond_the_longest_draft_goes_on():
    seen = observe([(16, 3)])
    found = draft_of(seen, 5)
    assert found.accepted == pytest.approx(sum(0.7**d for d in range(1, 6)), rel=0.02)
    assert found.known == "beyond"
    assert found.deviation > draft_of(seen, 3).deviation


def test_a_lookup_that_finds_nothing_brings_nothing():
    found = observe([(16, 5)])
    found.outcomes.clear()
    found.add_outcomes([(DraftOutcome("", 5, 0, 0), 1000)])
    assert (draft_of(found, 3).verified, draft_of(found, 3).accepted) == (0, 0)


def test_acceptance_by_depth_is_that_of_what_was_tested():
    for chance, tested in acceptance_by_depth(observe([(64, 4)], rates={"": 0.6}).outcomes):
        assert chance == pytest.approx(0.6, abs=0.02)
        assert tested > 0


def test_tables_in_the_form_of_each_engine(tmp_path, file, capsys):
    assert main([str(file), "--tables", str(tmp_path / "tables"), "--max-batch", "64"]) == 0
    vllm = read_json(tmp_path / "tables/vllm.json")
    rows = vllm["num_speculative_tokens_per_batch_size"]
    assert rows[0][0] == 1 and rows[-1][1] == 64
    assert all(b[0] == a[1] + 1 for a, b in pairwise(rows))
    assert vllm["num_speculative_tokens"] == max(length for *_, length in rows) <= 5
    sglang = read_json(tmp_path / "tables/sglang.json")
    assert "1" in sglang and all(each["candidate_steps"] for each in sglang.values())
    assert max(read_json(tmp_path / "tables/tensorrt-llm.json")["draft_len_schedule"].values()) <= 5


@pytest.mark.parametrize(
    "words", [["--longest", "0"], ["--longest", "10000"], ["--tables", "x", "--max-batch", "0"]]
)
def test_numbers_that_cannot_be_are_named(file, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(file), *words]) == 2
    assert " ".join(words[-2:]) in capsys.readouterr().err


def test_json_is_the_summary(file, capsys):
    assert main([str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"loads", "crossover", "regret", "acceptance", "drafter_kv", "traffic", "setup"} == set(
        found
    )
    assert set(found["acceptance"]) == {"all", "code"}
    load = found["loads"][-1]
    best = load["goodput"]
    assert best["low"] <= best["value"] <= best["high"]
    assert best["ms_per_token"] == pytest.approx(1e3 * load["requests"] / best["value"], rel=0.01)


def test_a_card_holds_what_was_observed(tmp_path, observation):
    card = Card.of(observation)
    card.write(tmp_path / "card.json")
    assert Card.read(tmp_path / "card.json") == card
    assert (card.model, card.longest, card.requests) == ("toy-8b", 5, (1.0, 16.0))


def test_a_card_says_why_it_does_not_fit(observation):
    card = Card.of(observation)
    assert card.problem(SETUP) is None
    assert card.problem(SETUP | {"device": "another", "version": "9"}) is None
    assert "model toy-8b, and this is other" in card.problem(SETUP | {"model": "other"})
    assert "engine vllm, and this is sglang" in card.problem(SETUP | {"engine": "sglang"})
    assert "draft model head" in card.problem(SETUP | {"draft_model": "another-head"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "x"}, "no card"),
        ({"format": 9}, "format 9"),
        ({"acceptance": [2.0]}, "acceptance"),
        ({"tested": []}, "tested"),
        ({"latency": {}}, "format"),
        ({"longest": 0}, "longest"),
        ({"acceptance": None}, "corrupt"),
    ],
)
def test_a_card_that_is_corrupt_is_named(tmp_path, observation, change, says):
    Card.of(observation).write(tmp_path / "card.json")
    change_json(tmp_path / "card.json", change)
    with pytest.raises(ValueError, match=says):
        Card.read(tmp_path / "card.json")


def test_files_may_be_read_by_those_who_may_read_others_of_this_user(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == 0o640
