"""What tests of the engine share: a real model that is loaded once, and threads for tests of kernels."""

from collections.abc import Iterator

import pytest
import torch
from default_model import load_once

from smartspec.control.latency.model import LatencyModel, ProfileSample
from smartspec.engine.runtime import build

# Kernels share their work between threads; with one, a barrier that is missing would go unseen.
OF_KERNELS = (
    *("decoder_layer", "elementwise", "fused_pass", "head_drafter", "head_kinds", "head_reference", "panel_linear"),
    *("quantized_linear", "ragged_attention", "row_bits", "sparse_window", "tree_attention"),
)


@pytest.fixture(autouse=True, scope="module")
def several_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two at least in tests of kernels, where `make test` gives each process one."""
    threads = torch.get_num_threads()
    if request.path.stem.removeprefix("test_") in OF_KERNELS:
        torch.set_num_threads(max(2, threads))
    yield
    torch.set_num_threads(threads)


def costs(fixed: float, per_token: float) -> list[ProfileSample]:
    """Passes of which one over few tokens costs hardly more than one over a single token, as on most machines."""
    sizes = [(rows, new) for rows in (1, 2, 4) for new in (1, 2, 4, 8, 16, 64)]
    return [ProfileSample(n * r, n * r + 64 * r, r, fixed + per_token * n * r, n * r) for r, n in sizes]


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """Engines share one loaded model, and none measures a profile, so that building one takes no time."""

    def latency(target, drafts, **options) -> LatencyModel:
        return LatencyModel.fit(costs(0.04, 1e-4), [costs(0.004, 1e-5) for _ in drafts])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load_model", load_once)
        patch.setattr(build, "profiled_latency", latency)
        yield
