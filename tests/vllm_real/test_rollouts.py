"""examples/rollouts.py in vLLM: weights change between rounds, texts are those without
speculation."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "rollouts.py"


def test_the_example_runs(model, tmp_path):
    # Each engine in a process of its own, as vLLM does by default: with numba loaded, 0.32 makes no
    # second one in one.
    environment = os.environ | {
        "SMARTSPEC_CACHE": str(tmp_path),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    words = ["--model", model, "--rounds", "2", "--prompts", "4", "--max-tokens", "24", "--check"]
    command = [sys.executable, str(EXAMPLE), *words]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "all 8 texts are the same without speculation" in run.stdout, run.stderr[-3000:]
