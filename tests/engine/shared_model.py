"""A real model that is loaded once, for engines whose profile is not measured."""

from collections.abc import Iterator

import pytest
from default_model import load_once

from smartspec.control import LatencyModel, ProfileSample
from smartspec.engine.runtime import build


def costs(fixed: float, per_token: float) -> list[ProfileSample]:
    """Passes of which one over few tokens costs hardly more than one over a single token, as on
    most machines."""
    sizes = [(rows, new) for rows in (1, 2, 4) for new in (1, 2, 4, 8, 16, 64)]
    return [
        ProfileSample(n * r, n * r + 64 * r, r, fixed + per_token * n * r, n * r) for r, n in sizes
    ]


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """Engines share one loaded model, and none measures a profile, so that building one takes no
    time."""

    def latency(models, report) -> LatencyModel:
        return LatencyModel.fit(costs(0.04, 1e-4), [costs(0.004, 1e-5) for _ in models.drafters])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load_model", load_once)
        patch.setattr(build, "profiled_latency", latency)
        yield
