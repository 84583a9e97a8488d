"""Tests of the plugin without vLLM: a stand-in with the signatures the plugin relies on takes its place (stub/vllm).
`make test-vllm` runs vLLM itself with a real model (tests/vllm_real)."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # nothing to warn about: see compatibility.slowness
collect_ignore_glob = []
if find_spec("vllm") is None:
    sys.path.insert(0, str(Path(__file__).parent / "stub"))
else:
    collect_ignore_glob.append("test_*.py")
