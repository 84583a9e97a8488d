"""What tests of the engine share: a real model that is loaded once, and threads for tests of
kernels."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compiled import attention
from shared_model import loaded_once

from smartspec.engine.models import chat_templates

__all__ = ["attention", "loaded_once"]
sys.path.append(str(Path(__file__).parent / "drafting"))  # whose heads tests of kernels use
# Kernels share their work between threads; with one, a barrier that is missing would go unseen.
OF_KERNELS = (
    *(
        "decoder_layer",
        "elementwise",
        "fused_pass",
        "head_drafter",
        "head_reference",
        "panel_linear",
    ),
    *("quantized_linear", "ragged_attention", "row_bits", "sparse_window", "tree_attention"),
)


@pytest.fixture(autouse=True)
def patience_with_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine renders slowly."""
    monkeypatch.setattr(chat_templates, "MAX_SECONDS", 60.0)


@pytest.fixture(autouse=True, scope="module")
def several_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two at least in tests of kernels, where `make test` gives each process one."""
    threads = torch.get_num_threads()
    if request.path.stem.removeprefix("test_") in OF_KERNELS:
        torch.set_num_threads(max(2, threads))
    yield
    torch.set_num_threads(threads)
