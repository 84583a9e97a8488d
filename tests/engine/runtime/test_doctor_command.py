"""`smartspec doctor`: what it says follows from the profile and the kernels."""

import pytest
from default_model import load_once

from smartspec.cli.doctor import DoctorOptions, doctor
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import DrafterSpec
from smartspec.engine.runtime import build
from smartspec.engine.runtime.advice import MODEL_FREE, advice_on, advice_on_threads, load_of

LOOKUP, MODEL = DrafterSpec("lookup"), DrafterSpec("a-model", has_passes=True)
OURS = {"attention": "compiled with gcc", "linear": "compiled with gcc"}


def latency(per_token: float) -> LatencyModel:
    """A pass takes 10 ms and so much a token; one of the draft model 1 ms."""
    model = LatencyModel(CostCurve.linear(0.01, per_token), (None, CostCurve.linear(0.001, 0.0)))
    model.use_drafters((LOOKUP, MODEL))
    return model


def test_prices_and_the_acceptance_from_which_drafts_pay():
    load = load_of(latency(0.001), (LOOKUP, MODEL), 10, 100)
    assert load.seconds == pytest.approx(0.02) and load.price == pytest.approx(0.001)
    # One draft token each: 20 tokens in 30 ms at best against 10 in 20.
    assert load.pays_from[MODEL_FREE] == pytest.approx(0.5)
    assert load.pays_from["a-model"] == pytest.approx(0.55)


def test_the_advice_names_the_load_up_to_which_drafts_pay():
    loads = [load_of(latency(0.002), (LOOKUP, MODEL), n, 100) for n in (1, 2, 4, 8, 16, 32, 64)]
    text = " ".join(advice_on(OURS, loads))
    assert "drafts without a model pay up to about 32 requests at once" in text
    dear = [load_of(latency(1.0), (LOOKUP, MODEL), n, 100) for n in (1, 2)]
    assert any("--policy off" in line for line in advice_on(OURS, dear))
    assert advice_on(OURS, [load_of(latency(1e-6), (LOOKUP,), 1, 100)]) == []


def test_kernels_of_torch_and_wrong_threads_are_named():
    (line,) = advice_on(OURS | {"linear": "torch's, because there is no C compiler"}, [])
    assert line.startswith("linear runs in torch (there is no C compiler)")
    assert "OMP_NUM_THREADS=2" in advice_on_threads(4, 2)[0]
    assert advice_on_threads(1, 8) and not advice_on_threads(1, 2) and not advice_on_threads(2, 2)


def test_the_screen_shows_kernels_and_prices(monkeypatch, capsys):
    monkeypatch.setattr(build, "load_model", load_once)
    monkeypatch.setattr(
        build, "profiled_latency", lambda *_, **__: LatencyModel(CostCurve.linear(0.01, 0.001))
    )
    doctor(**vars(DoctorOptions(device="cpu", max_batch=4)))
    text = capsys.readouterr().out
    assert "linear: " in text and "attention: " in text and "prediction" in text
    # steps/s, price in ms, acceptance of one request
    assert "90.9" in text and "1.00" in text and "0.09" in text
    assert "hange" in text
