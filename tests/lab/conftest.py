"""Helpers of the engine's tests, and of those that make heads for vLLM."""

import sys
from pathlib import Path

for folder in (
    "engine",
    "engine/drafting",
    "engine/runtime",
    "drafters",
    "lab/drafters",
    "vllm_real",
):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from compiled import attention  # noqa: E402
from shared_model import loaded_once  # noqa: E402

__all__ = ["attention", "loaded_once"]
