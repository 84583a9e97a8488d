"""`vllm_plugin.py policies`: what is left to do, what is kept, and the arithmetic of its table."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import scripted_server
from lib import servers, vllm_policies
from lib.vllm_policies import Cell, Results

from smartspec.workload.prompts import Prompt

POLICIES = ["off", "fixed:3", "smartspec"]
SETTINGS = {"policies": POLICIES, "max_tokens": 4, "prompts": "None"}
CELLS = [Cell("qa", 1), Cell("qa", 4)]


def one_round(*speeds: float) -> dict:
    return {
        p: {"tokens_per_second": s, "texts": {"a": "same"}}
        for p, s in zip(POLICIES, speeds, strict=True)
    }


def prompts_of(count: int) -> list[Prompt]:
    return [Prompt(str(number), "qa", f"text {number}") for number in range(count)]


def test_rounds_that_are_there_are_kept_and_not_measured_again(tmp_path):
    results = Results.read(tmp_path / "results.json", SETTINGS)
    results.table = {"num_speculative_tokens": 1}
    results.add(CELLS[0], one_round(10.0, 12.0, 12.5))
    again = Results.read(tmp_path / "results.json", SETTINGS)
    assert again == results
    todo = [(number, cell.key) for number, cell in vllm_policies.remaining(again, CELLS, 2)]
    assert todo == [(0, "qa 4"), (1, "qa 1"), (1, "qa 4")]
    with pytest.raises(ValueError, match="other settings"):
        Results.read(tmp_path / "results.json", SETTINGS | {"max_tokens": 5})


def test_the_ratio_is_that_to_the_best_other_policy_and_its_interval_that_of_the_rounds():
    speeds = np.array([[10.0, 20.0, 22.0], [10.0, 20.0, 18.0], [10.0, 20.0, 20.0]])
    middle, low, high = vllm_policies.ratio(speeds, 2, [0, 1])
    assert middle == pytest.approx((22 * 18 * 20) ** (1 / 3) / 20)
    assert 0.9 <= low < middle < high <= 1.1
    same = vllm_policies.ratio(np.array([[10.0, 20.0, 19.0]] * 4), 2, [0, 1])
    assert same == pytest.approx((0.95, 0.95, 0.95))


def test_the_worst_cell_comes_first(tmp_path):
    results = Results(tmp_path / "results.json", SETTINGS)
    for ours in (15.0, 15.2):
        results.add(CELLS[0], one_round(10.0, 12.0, ours))
        results.add(CELLS[1], one_round(20.0, 30.0, ours))
    table = vllm_policies.results_table(results, CELLS)
    assert list(table.columns[1].cells) == ["4", "1"]
    assert [text.split()[0] for text in table.columns[5].cells] == ["0.50", "1.26"]
    assert list(table.columns[8].cells) == ["6/6", "6/6"]


def test_each_round_has_requests_of_its_own():
    prompts = prompts_of(5)
    rounds = [CELLS[1].requests(prompts, number, 8, waves=1.5) for number in (0, 1)]
    assert [len(requests) for requests in rounds] == [6, 6]
    assert len({request.cache_salt for requests in rounds for request in requests}) == 12
    assert len(CELLS[0].requests(prompts, 0, 8, waves=1)) == vllm_policies.FEWEST_REQUESTS


def test_every_policy_serves_in_turn_and_a_failed_request_ends_the_run(tmp_path):
    command = servers.ServerCommand([sys.executable, scripted_server.__file__, "--port", "{port}"])
    requests = CELLS[0].requests(prompts_of(3), 0, 4, waves=1)
    with ExitStack() as stack:
        targets = vllm_policies.start({"off": command, "smartspec": command}, tmp_path, stack)
        found = vllm_policies.run_round(targets, CELLS[0], requests, first=1)
    assert list(found) == ["smartspec", "off"]
    for result in found.values():
        assert result["tokens_per_second"] > 0 and len(result["texts"]) == 4
    with pytest.raises(ValueError, match="4 of 4 requests failed"):
        vllm_policies.run_round(targets, CELLS[0], requests, first=0)


def arguments(policy: str, *more) -> list[str]:
    """Of a server of the policy at port 7."""
    vllm = servers.ServerCommand(["vllm", "{port}"])
    command = vllm_policies.policy_command(policy, vllm, Path("x"), *more)
    return [word.format(port=7) for word in command.arguments]


@pytest.mark.parametrize("name", vllm_policies.ALL_OURS)
def test_what_drafts_with_each_policy_of_ours(name):
    head = {"method": "eagle3", "model": "HEAD"}
    words = arguments(name, {}, head)
    drafts, options = (
        json.loads(words[words.index(f"--{what}-config") + 1])
        for what in ("speculative", "additional")
    )
    own = vllm_policies.OWN_DRAFTS["model"]
    assert drafts["model"] == (own if name == vllm_policies.IN_SCHEDULER else "HEAD")
    assert "cache" in options["smartspec"]


def test_braces_of_json_survive_the_port():
    words = arguments("fixed:3", None)
    assert words[1:3] == ["7", "--speculative-config"]
    assert '"num_speculative_tokens": 3' in words[3]
