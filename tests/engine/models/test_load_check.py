"""Every architecture loads as something that computes what transformers computes, or not at all."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from saved_models import LONGROPE, load_saved, save_model, stock_logits

from smartspec.engine.attention import ragged as attention
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models import fusion, load_check, panel_linear
from smartspec.engine.models.checkpoint import UnsupportedModelError
from smartspec.engine.models.fusion import FusedAttention, FusedMLP, FusedRMSNorm
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.panel_linear import PanelLinear
from smartspec.engine.runtime.build import load_models
from smartspec.engine.runtime.config import EngineConfig

TEXT = np.random.default_rng(0).integers(3, 32, 40).astype(np.int32)
FULL, SLIDING = "full_attention", "sliding_attention"
# Weights as large as a trained model's: with transformers' own, attention hardly shows in the
# logits.
LARGE = {"initializer_range": 0.3}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}


def largest_error(folder: Path, loaded: LoadedModel) -> float:
    """Of the logits of TEXT, in chunks beside another request and with wrong drafts rolled back,
    over the largest."""
    expected = stock_logits(folder, TEXT)
    runner = ModelRunner(loaded, num_slots=2, max_len=48)
    other = TEXT[::-1].copy()
    first = runner.forward([Segment(1, 0, TEXT[:23], 23)])
    wrong = runner.forward(
        [Segment(1, 23, np.concatenate([TEXT[23:24], other[:4]]), 5), Segment(0, 0, other, 1)]
    )
    last = runner.forward([Segment(0, 40, TEXT[:1], 1), Segment(1, 24, TEXT[24:], 16)])
    logits = torch.cat([first, wrong[:1], last[1:]])
    return float((logits - expected).abs().max() / expected.abs().max())


def kinds(loaded: LoadedModel) -> list[int]:
    """Fused attentions, MLPs and norms, and linears in panels."""
    modules = list(loaded.model.modules())
    types = (FusedAttention, FusedMLP, FusedRMSNorm, PanelLinear)
    return [sum(isinstance(module, kind) for module in modules) for kind in types]


@pytest.mark.parametrize("model_type", ["hunyuan_v1_moe", "afmoe", "jetmoe", "glm4_moe"])
def test_models_that_once_raised_or_turn_a_part_of_heads_are_right(tmp_path, model_type):
    changes = {"kv_channels": 8, "first_k_dense_replace": 1}
    save_model(tmp_path, model_type, **EXPERTS, **LARGE, **changes)
    loaded = load_saved(tmp_path)
    assert kinds(loaded)[2] > 0 and kinds(loaded)[3] > 0
    if model_type == "glm4_moe":
        attentions = [m for m in loaded.model.modules() if isinstance(m, FusedAttention)]
        assert [each.rotary_width for each in attentions] == [4, 4, 4] and kinds(loaded)[1] > 0
    assert largest_error(tmp_path, loaded) < 1e-4


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("mistral", {}, (9, 9, 9)),
        ("phimoe", {}, (9, 9, 9)),
        (
            "qwen2_moe",
            {"use_sliding_window": True, "layer_types": [FULL, SLIDING, SLIDING]},
            (None, 9, 9),
        ),
        # hands its attention an option sliding_window that its mask has not
        ("olmoe", {}, (None, None, None)),
        ("gemma3_text", {"layer_types": [SLIDING, FULL, SLIDING]}, (9, None, 9)),
    ],
)
def test_windows_are_those_of_the_masks(tmp_path, model_type, changes, windows):
    save_model(tmp_path, model_type, **EXPERTS, **LARGE, sliding_window=9, **changes)
    loaded = load_saved(tmp_path)
    assert loaded.windows == windows
    assert largest_error(tmp_path, loaded) < 1e-4


def test_the_check_is_longer_than_the_window_and_leaves_it_alone(tmp_path, monkeypatch):
    save_model(tmp_path, "mistral", **LARGE, sliding_window=64)
    references = []
    original = load_check._ragged_error
    monkeypatch.setattr(
        load_check, "_ragged_error", lambda *args: references.append(args[1]) or original(*args)
    )
    loaded = load_saved(tmp_path)
    assert references[0].windows == (load_check.SMALL_WINDOW,) * 3
    assert len(references[0].texts[0]) > 2 * load_check.SMALL_WINDOW
    assert loaded.windows == (64, 64, 64) and loaded.model.config.sliding_window == 64


@pytest.fixture
def longrope(tmp_path: Path) -> Path:
    changes = {"original_max_position_embeddings": 48, "sliding_window": None}
    return save_model(tmp_path, "phi3", **LARGE, **changes, rope_parameters=LONGROPE)


def test_rotary_factors_that_switch_limit_the_length(longrope, caplog):
    loaded = load_saved(longrope)
    assert loaded.max_model_len == 48
    assert (
        "served up to 48 tokens, the positions beyond which one request would change" in caplog.text
    )
    assert largest_error(longrope, loaded) < 1e-4
    with pytest.raises(
        ValueError, match=r"max_len 49 exceeds 48, the positions beyond .* rotary factors .*lower"
    ):
        ModelRunner(loaded, num_slots=1, max_len=49)


def test_a_longer_max_model_len_is_refused_with_the_reason(longrope):
    config = EngineConfig(model=str(longrope), drafters=(), device="cpu", max_model_len=64)
    with pytest.raises(
        ValueError, match=r"max_model_len 64 exceeds 48, .* rotary factors .* lower it"
    ):
        load_models(config)


def test_neighbours_and_drafts_up_to_the_limit_change_nothing(longrope):
    loaded = load_saved(longrope)

    def last_logits(beside: bool) -> torch.Tensor:
        runner = ModelRunner(loaded, num_slots=2, max_len=loaded.max_model_len)
        runner.forward([Segment(0, 0, TEXT[:30], 1)])
        segments = [Segment(0, 30, TEXT[30:31], 1)]
        if beside:
            segments.append(Segment(1, loaded.max_model_len - 8, TEXT[:8], 1))
        return runner.forward(segments)[0]

    torch.testing.assert_close(last_logits(True), last_logits(False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rope_type", ["default", "linear", "dynamic", "yarn"])
def test_other_rotary_embeddings_keep_their_length(tmp_path, rope_type):
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0}
    save_model(tmp_path, **LARGE, rope_parameters=rope)
    loaded = load_saved(tmp_path)
    assert loaded.max_model_len == 96
    assert largest_error(tmp_path, loaded) < 1e-4


def makes_mlps_wrong(patch: pytest.MonkeyPatch) -> None:
    forward = FusedMLP.forward
    patch.setattr(FusedMLP, "forward", lambda self, x: forward(self, x) * 1.01)
    patch.setattr(fusion, "close", lambda a, b: True)


def fails_to_fuse(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("smartspec.engine.models.load.fuse", Mock(side_effect=AttributeError("no head")))


def has_no_packed_linears(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(panel_linear, "panel_linear", Mock(side_effect=RuntimeError("no such kernel")))
    patch.setattr("smartspec.engine.models.load.fuse", lambda model: None)


@pytest.mark.parametrize(
    ("harm", "num_linears", "said"),
    [
        (makes_mlps_wrong, 22, "fused modules: its logits differ"),
        (fails_to_fuse, 22, "fused modules: preparing them fails with AttributeError: no head"),
        (
            has_no_packed_linears,
            0,
            "packed modules: its pass over several requests fails with RuntimeError",
        ),
    ],
)
def test_what_differs_or_fails_is_not_used(tmp_path, monkeypatch, caplog, harm, num_linears, said):
    harm(monkeypatch)
    loaded = load_saved(save_model(tmp_path, **LARGE))
    assert kinds(loaded) == [0, 0, 0, num_linears]
    assert f"not served with {said}" in caplog.text
    assert largest_error(tmp_path, loaded) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", ["window", "scale"])
def test_a_model_that_differs_with_stock_modules_is_refused(tmp_path, monkeypatch, dtype, part):
    if part == "window":
        monkeypatch.setattr(load_check, "layer_windows", lambda calls: (None,) * len(calls))
    else:
        cached = attention.cached_attention
        wrong = lambda *args, **options: cached(*args, **{**options, "scaling": 1.0})  # noqa: E731
        monkeypatch.setitem(attention.AttentionInterface._global_mapping, "smartspec", wrong)
        monkeypatch.setattr(attention, "cached_attention", wrong)
    save_model(tmp_path, "mistral", **LARGE, sliding_window=9)
    with pytest.raises(UnsupportedModelError, match="even with stock modules its logits differ by"):
        load_saved(tmp_path, dtype=dtype)


@pytest.mark.parametrize("model_type", ["mistral", "mixtral", "qwen3_moe"])
def test_rounding_is_not_taken_for_a_difference(tmp_path, model_type, caplog):
    save_model(tmp_path, model_type, **EXPERTS, **LARGE)
    load_saved(tmp_path, dtype="bfloat16")
    assert not caplog.text
