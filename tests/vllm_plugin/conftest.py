"""Tests of the plugin without vLLM: a stand-in with the signatures the plugin relies on takes its
place (stub/vllm). `make test-vllm` runs vLLM itself with a real model (tests/vllm_real)."""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

# nothing to warn about: see compatibility.slowness
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")
collect_ignore_glob = []
if find_spec("vllm") is None:
    sys.path.insert(0, str(Path(__file__).parent / "stub"))
else:
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is no folder that hangs."""
    from smartspec.vllm_plugin.file_thread import FileThread

    for name in ("call", "wait"):
        monkeypatch.setattr(getattr(FileThread, name), "__defaults__", (120.0,))
    monkeypatch.setattr("smartspec.vllm_plugin.stat_logger.SCRAPE_SECONDS", 120.0)


@pytest.fixture(autouse=True)
def own_folder_for_temporary_files(tmp_path, monkeypatch):
    """Nothing is left in that of the machine."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def clean_registry():
    """What a test registers, as the process that answers HTTP, is gone after it."""
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)
