"""Tensor parallelism: two processes with SGLang's own group, controller and policy, and a clock
each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "two_ranks.py"


def steps_of_ranks(tmp_path, tp_size: int, uses_queue: bool) -> list[list[int]]:
    """The steps that each rank launches."""
    environment = os.environ | {
        "SMARTSPEC_SGLANG": "on",
        "SMARTSPEC_CACHE": str(tmp_path),
        "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": str(uses_queue).lower(),
        "PYTHONPATH": os.pathsep.join(
            [str(PROGRAM.parents[2] / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    words = [sys.executable, str(PROGRAM)], [str(tmp_path / "meeting"), str(tp_size)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    ranks = [subprocess.Popen([*words[0], str(rank), *words[1]], **pipes) for rank in (0, 1)]
    found = []
    for rank in ranks:
        out, errors = rank.communicate()
        assert rank.returncode == 0, errors
        found.append(json.loads(out.splitlines()[-1]))
    assert {each["policy"] for each in found} == {"Agreed" if tp_size > 1 else "GoodputSteps"}
    return [each["chosen"] for each in found]


@pytest.mark.parametrize("uses_queue", [True, False], ids=["shared memory", "gloo"])
def test_all_ranks_take_the_steps_of_rank_0(tmp_path, uses_queue):
    first, second = steps_of_ranks(tmp_path, 2, uses_queue)
    assert first == second and len(set(first[-200:])) > 1


def test_each_for_itself_they_would_differ(tmp_path):
    first, second = steps_of_ranks(tmp_path, 1, False)
    assert first != second
