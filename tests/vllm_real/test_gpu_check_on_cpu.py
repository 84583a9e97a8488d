"""The whole script of `make test-gpu`, small, on vLLM's CPU build."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_it_runs_and_answers_are_exact(model, tmp_path):
    output = tmp_path / "result.json"
    options = {
        "model": model,
        "lengths": "3",
        "levels": "1,2",
        "prompts": 4,
        "max-tokens": 24,
        "output": output,
    }
    command = [
        sys.executable,
        str(SCRIPT),
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=480)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    found = json.loads(output.read_text())
    assert set(found["servers"]) == {"off", "fixed:3", "smartspec"}
    assert found["wrong_answers"] == {"off": 0, "fixed:3": 0, "smartspec": 0}
    assert not found["servers"]["smartspec"]["problems"]
    assert all(
        speed > 0
        for server in found["servers"].values()
        for speed in server["tokens_per_second"].values()
    )
    assert (
        found["servers"]["smartspec"]["drafted"] > 0
        and len(found["servers"]["off"]["answers"]) == 4
    )
    assert "of the best other, worst cell" in result.stdout
