"""`peers.py throughput` against two fake servers, and its arithmetic on hand-made cells."""

import json
import sys

import peers
import pytest
import scripted_server
from lib import servers
from lib.commands import read_kept

from smartspec.workload.prompts import Prompt

SETTINGS = peers.Settings(["a", "b"], None, rounds=3, per_slot=2, max_tokens=6, seed=0)
PROMPTS = [Prompt(str(i), "qa", f"text {i}") for i in range(5)]


def cell(**rates_of_server) -> dict:
    counters = {"num_verified_tokens": 8, "num_accepted_tokens": 6, "num_decode_rows": 4}
    summary = {"speculation": {"counters": counters}}
    servers = {
        name: {"rounds": [summary | {"output_tokens_per_second": rate} for rate in rates]}
        for name, rates in rates_of_server.items()
    }
    return {"task": "qa", "concurrency": 4, "servers": servers}


def test_the_ratio_is_that_of_the_medians_with_the_spread_of_the_rounds():
    one = cell(a=[10.0, 20.0, 40.0], b=[11.0, 30.0, 36.0])
    middle, single = peers.ratio(one, "b", "a")
    assert middle == pytest.approx(1.5) and single == pytest.approx([1.1, 1.5, 0.9])
    assert (
        peers.standard_error(single) == pytest.approx(0.1764, abs=1e-4)
        and peers.standard_error([1.1]) is None
    )
    assert peers.speculation(one, "b") == (0.75, 2.0)


def test_no_two_requests_of_a_cell_are_equal_and_each_round_has_its_own():
    rounds = peers.round_requests("qa", PROMPTS, 3, SETTINGS)
    assert [len(requests) for requests in rounds] == [6, 6, 6]
    assert (
        len({(request.system, request.prompt) for requests in rounds for request in requests}) == 18
    )
    assert len({request.prompt_id for requests in rounds for request in requests}) == 18
    assert rounds == peers.round_requests("qa", PROMPTS, 3, SETTINGS)
    assert len(peers.round_requests("qa", PROMPTS, 1, SETTINGS)[0]) == 4


def test_cells_already_measured_are_skipped_and_bad_names_refused():
    done, known = [{"task": "qa", "concurrency": 4}], {"qa": [], "rag": [], "mixed": []}
    assert peers.missing_cells("qa,rag", "1,4", done, known) == [("qa", 1), ("rag", 1), ("rag", 4)]
    each = [("qa", 1), ("qa", 2), ("rag", 1), ("rag", 2)]
    assert peers.missing_cells("each", "1,2", done, known) == each
    for tasks, levels, some, said in (
        ("poetry", "1", known, "unknown task 'poetry': these prompts have qa, rag, mixed"),
        ("qa", "1,0", known, "must be numbers"),
        ("each", "1", {"mixed": []}, "use --tasks mixed"),
    ):
        with pytest.raises(ValueError, match=said):
            peers.missing_cells(tasks, levels, [], some)


def test_a_file_of_other_settings_is_not_continued(tmp_path):
    path = tmp_path / "cells.json"
    path.write_text(json.dumps({"settings": {"rounds": 9}, "cells": []}))
    with pytest.raises(ValueError, match="made with other settings"):
        read_kept(path, {"rounds": 8}, cells=[])
    assert read_kept(path, {"rounds": 9}, cells=[])["cells"] == []
    for text in ("[]", "{", "3"):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a result of this benchmark"):
            read_kept(path, {"rounds": 9}, cells=[])
    assert read_kept(tmp_path / "absent.json", {"rounds": 9}, cells=[]) == {
        "settings": {"rounds": 9},
        "cells": [],
    }


def test_servers_are_started_measured_in_turn_and_stopped_in_every_round(monkeypatch):
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0)
    commands = {
        name: servers.ServerCommand(
            [sys.executable, scripted_server.__file__, "--port", "{port}"], {"NAME": name}
        )
        for name in "ab"
    }
    started, start = [], peers.started

    def noted(command, slots):
        started.append((command.environment["NAME"], slots))
        return start(command, slots)

    monkeypatch.setattr(peers, "started", noted)
    content = {"settings": {"servers": ["a", "b"]}, "cells": []}
    cells = {("qa", 2): peers.round_requests("qa", PROMPTS, 2, SETTINGS)}
    saves = []
    peers.measure_cells(content, cells, commands, lambda: saves.append(len(content["cells"])))
    measured = content["cells"][0]["servers"]
    assert saves == [1] and started == [(name, 2) for name in "abbaab"]
    rounds = [each for name in "ab" for each in measured[name]["rounds"]]
    assert [each["num_completed"] for each in rounds] == [4] * 6
    assert measured["b"]["num_same_text"] == 12
    assert peers.table(json.loads(json.dumps(content))).row_count == 1


def test_a_server_that_does_not_start_is_reported_with_its_last_words(tmp_path):
    command = servers.ServerCommand(
        [sys.executable, "-c", "raise SystemExit('no model today')", "{port}"]
    )
    with (
        pytest.raises(ValueError, match=r"ended with status 1(.|\n)*no model today"),
        servers.running(command, tmp_path / "log"),
    ):
        pass


def test_vllm_needs_its_environment_and_a_model_folder():
    with pytest.raises(ValueError, match="needs --vllm-python and --model-path"):
        servers.server_command("vllm", None, "python")
    assert "--policy fixed:3" in " ".join(servers.server_command("fixed:3", None, None).arguments)
