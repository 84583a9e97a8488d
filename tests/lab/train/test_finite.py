"""Numbers that are large, NaN or infinite: kept as they are where they can be, never learned from,
never written."""

import numpy as np
import pytest
import torch
from tiny_training import changed, curve, generate, train
from transformers import AutoModelForCausalLM

from lab.train import run
from lab.train.fit import Training
from lab.train.shards import shard_paths
from lab.train.signals import read_signals, signals_of, signals_path
from smartspec.engine.drafting.head.eagle3 import default_taps
from smartspec.engine.drafting.head.kinds import is_head
from smartspec.engine.models.load import load_model
from smartspec.texts.shards import read_shard


@pytest.mark.parametrize("size", [1.0, 3e5])
def test_features_are_what_transformers_computes_however_large(target, tmp_path, size):
    """Activations beyond 65,504 do not fit into float16."""
    big = changed(
        target,
        tmp_path / "big",
        lambda model: model.model.layers[2].mlp.down_proj.weight.mul_(size),
    )
    data = tmp_path / "texts"
    generate(big, data, 100)
    model, text = AutoModelForCausalLM.from_pretrained(big), read_shard(shard_paths(data)[0])
    recorded = read_signals(signals_path(data, 0), text)
    assert (
        (np.abs(recorded[0].features).max() > 65504)
        == (recorded[0].features.dtype == np.float32)
        == (size > 1)
    )
    for row, each in zip(text[:5], recorded, strict=False):
        with torch.inference_mode():
            hidden = model(
                torch.from_numpy(row.token_ids[None, :-1].astype(np.int64)),
                output_hidden_states=True,
            )
        expected = torch.cat(
            [hidden.hidden_states[tap][0] for tap in default_taps(6)], dim=-1
        ).numpy()
        np.testing.assert_allclose(
            each.features, expected, rtol=2e-2, atol=2e-3 * np.abs(expected).max()
        )
    train(big, data, tmp_path / "head")
    state = torch.load(tmp_path / "head" / "training.pt", weights_only=True)
    assert is_head(str(tmp_path / "head")) and all(
        value.isfinite().all() for value in state["head"].values()
    )


def test_a_target_that_computes_nothing_finite_stops_the_run(target, tmp_path, monkeypatch):
    """Of some tokens, which the check at loading did not meet."""

    def load(name):
        loaded = load_model(name)
        with torch.inference_mode():
            loaded.model.get_input_embeddings().weight[20:] = torch.nan
        return loaded

    monkeypatch.setattr(run, "load_model", load)
    with pytest.raises(ValueError, match=r"activations that are NaN or infinite: .* are kept"):
        generate(target, tmp_path / "texts", 2000)
    assert all(np.isfinite(each.features).all() for path in shard_paths(tmp_path / "texts")
               for each in read_signals(signals_of(path), read_shard(path)))  # fmt: skip


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "loss",
            r"the loss is nan and its gradient nan: what was kept last stays, .* a --learning-rate "
            r"below 0\.01",
        ),
        ("gradient", r"the loss is \d\S+ and its gradient nan: what was kept last stays"),
        (
            "weights",
            r"norm\.weight of the head holds NaN or infinity: what was kept last stays, .* "
            r"--learning-rate",
        ),
    ],
)
def test_a_head_of_nan_is_never_written(what, said, target, texts, tmp_path, monkeypatch):
    out = tmp_path / "head"
    train(target, texts, out, num_tokens=200)
    for name in ("config.json", "model.safetensors"):
        (out / name).unlink()
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    learn, loss_of = Training._learn, run.Training._learn.__globals__["loss_of"]

    def wrong_loss(head, *arguments):
        loss = loss_of(head, *arguments)
        # slope: 0 * inf
        return loss * torch.nan if what == "loss" else loss + (head.norm.weight.sum() * 0.0).sqrt()

    def wrong_weights(self, batch):
        learn(self, batch)
        if self.num_tokens >= self.settings.num_tokens:  # else the next loss would tell
            self.head.norm.weight.data[0] = torch.nan

    if what == "weights":
        monkeypatch.setattr(Training, "_learn", wrong_weights)
    else:
        monkeypatch.setattr("lab.train.fit.loss_of", wrong_loss)
    with pytest.raises(ValueError, match=said):
        train(target, texts, out)
    assert (
        not is_head(str(out)) and {path.name: path.read_bytes() for path in out.iterdir()} == kept
    )
    assert len(curve(out)) == 1


def test_a_checkpoint_of_nan_is_not_continued(target, texts, tmp_path):
    train(target, texts, tmp_path, num_tokens=200)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    state["head"]["fc.weight"][0, 0] = torch.inf
    torch.save(state, tmp_path / "training.pt")
    with pytest.raises(
        ValueError,
        match=r"training\.pt cannot be continued .*fc\.weight .*NaN or infinity.*delete it",
    ):
        train(target, texts, tmp_path)
    (tmp_path / "draft_vocabulary.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"draft_vocabulary\.npy cannot be read"):
        train(target, texts, tmp_path)
