"""Tests with SGLang's own classes, in an environment of their own: `make test-sglang`. They need no
GPU. They are marked, so that the default tests leave them out."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sglang_plugin"))
collect_ignore_glob = [] if find_spec("sglang") and find_spec("torch") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sglang)
