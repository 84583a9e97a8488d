"""A drafter that is new to the engine needs a class and a name in one dict: this one exists in the
test alone."""

import numpy as np
import pytest
from tiny_engine import outputs, run
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import DrafterSpec
from smartspec.core.batch import Draft, chain
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.drafter_names import MODEL_FREE_DRAFTERS
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.engine.runtime import build
from smartspec.engine.runtime.config import EngineConfig


class SayAgain(ModelFreeDrafter):
    """Drafts what the target wrote last, for every request."""

    spec = DrafterSpec("say-again", match_lengths=(0, 2))

    def __init__(self, **options):
        super().__init__(**options)
        self.written: list[int] = []

    def propose(self, token_ids: np.ndarray) -> Draft:
        return chain(
            np.array(self.written[-self.max_draft_tokens :], dtype=np.int32),
            match_length=len(self.written),
        )

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        self.written += emitted_token_ids


@pytest.fixture
def engine(monkeypatch) -> build.Engine:
    monkeypatch.setitem(MODEL_FREE_DRAFTERS, "say-again", SayAgain)
    monkeypatch.setattr(build, "load_model", lambda *args, **options: as_loaded(tiny_llama(0)))
    monkeypatch.setattr(
        build, "profiled_latency", lambda *a, **options: LatencyModel(CostCurve.linear(0.01, 1e-6))
    )
    config = EngineConfig(
        drafters=("prompt-lookup", "say-again"), policy="goodput", max_batch=2, strict=True
    )
    return build.build_engine(config)


def generate(engine: build.Engine) -> list[list[int]]:
    prompts = [
        np.random.default_rng(seed).integers(0, VOCABULARY, 12).tolist() for seed in range(4)
    ]
    requests = [
        Request(i, p, SamplingParams(max_tokens=16, temperature=0.0), seed=i)
        for i, p in enumerate(prompts)
    ]
    return outputs(run(engine.core, requests))


def test_a_third_drafter_needs_a_class_and_a_line(engine):
    outcome = []
    learn = engine.core.controller.learn
    engine.core.controller.learn = lambda plan, step: (outcome.append(step), learn(plan, step))
    with_drafts = generate(engine)
    assert engine.core.controller.state()["drafters"] == ["prompt-lookup", "say-again"]
    assert "say-again, match 2+" in engine.core.controller.state()["acceptance"]
    assert any((step.plan.lengths_of(1) > 0).any() for step in outcome), "it drafts"
    assert any(step.free_tests[1].tested.any() for step in outcome), (
        "and is compared where it does not"
    )
    engine.core.controller.policy = build.Controller(
        "off", 4, LatencyModel(CostCurve.linear(1, 1)), drafters=()
    ).policy
    assert generate(engine) == with_drafts
