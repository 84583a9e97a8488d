"""The command as a person runs it: the real model, two servers of it, and the page."""

import json
import subprocess
import sys


def test_policies_of_the_default_model_become_a_page(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "smartspec",
        "report",
        "--output",
        str(out),
        "--policies",
        "off,goodput",
    ]
    command += [
        "--workloads",
        "math,text-to-sql",
        "--concurrency",
        "2",
        "--max-tokens",
        "12",
    ]
    command += ["--repetitions", "1", "--rates", "4", "--seconds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["cells"]) == 6 and len(summary["speed_ups"]) == 3
    assert {each["verdict"] for each in summary["speed_ups"]} <= {
        "inside the noise",
        "too few repetitions",
    }
    # drafts change no answer
    assert all(each["equal_answers"] == 1.0 for each in summary["speed_ups"])
    assert all(each["tokens_per_second"] > 0 for each in summary["cells"])
    page = (out / "index.html").read_text()
    assert "goodput against off, 3 cells" in page and "mixed, Poisson arrivals" in page
    assert summary["environment"]["cpu"] in page
