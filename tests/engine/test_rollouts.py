"""examples/rollouts.py on the embedded engine, with a tiny random model. In vLLM:
tests/vllm_real/test_rollouts.py."""

import sys
from pathlib import Path

import pytest
from saved_models import save_model

from smartspec.control import CostCurve, LatencyModel
from smartspec.engine.runtime import build

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def rollouts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(
        build, "profiled_latency", lambda *_, **__: LatencyModel(CostCurve.linear(0.01, 1e-6))
    )
    import rollouts

    monkeypatch.setattr(rollouts, "PROMPTS", ["a b a b", "c d e"])
    monkeypatch.setattr(rollouts, "NOISE", 1.0)
    save_model(tmp_path / "model", "llama")
    words = f"--embedded --model {tmp_path}/model --rounds 2 --prompts 4 --max-tokens 12 --check"
    monkeypatch.setattr(sys, "argv", ["rollouts.py", *words.split()])
    return rollouts


def test_texts_of_changed_weights_are_those_without_speculation(rollouts, capsys):
    rollouts.main()
    assert "all 8 texts are the same without speculation" in capsys.readouterr().out


def test_weights_that_are_not_taken_are_noticed(rollouts, monkeypatch):
    monkeypatch.setattr(rollouts, "train", lambda model, seed: None)
    with pytest.raises(SystemExit, match="its weights were not taken"):
        rollouts.main()
