"""What says how likely a head's draft tokens are accepted: it learns, it is calibrated, it is
written if it helps."""

import shutil

import numpy as np
import pytest
import torch
from json_files import change_json
from tiny_training import quiet, train

from lab.heads.acceptance_head import FILE, AcceptanceHead, read_acceptance
from lab.train import acceptance
from lab.train.acceptance import AcceptanceSettings, DraftTokens, learn, log_loss
from smartspec.engine.drafting.trees.proposals import Proposals

SIZE = 8
PROPOSALS = Proposals(np.array([[3, 1, 2]]), np.array([[0.6, 0.2, 0.1]]), np.array([1.0]))


def made_up(num: int, seed: int) -> DraftTokens:
    """Tokens that are accepted by the sign of the first hidden value, of which the head says
    nothing."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(num, SIZE)).astype(np.float16)
    truth = np.where(hidden[:, 0] > 0, 0.9, 0.2)
    accepted = random.random(num) < truth
    return DraftTokens(
        torch.from_numpy(hidden), torch.full((num,), 0.5), torch.from_numpy(accepted)
    )


@pytest.mark.parametrize("reject_weight", [1.0, 6.0])
def test_it_learns_what_the_head_does_not_say_and_is_calibrated(reject_weight):
    settings = AcceptanceSettings(reject_weight=reject_weight, learning_rate=1e-2, num_epochs=20)
    made, other = learn(made_up(8_000, 0), settings), made_up(4_000, 1)
    said = made(other.hidden.float(), other.chances)
    assert log_loss(said, other.accepted) < 0.75 * log_loss(
        torch.logit(other.chances), other.accepted
    )
    likely = other.hidden[:, 0] > 0.3
    assert torch.sigmoid(said)[likely].mean() == pytest.approx(0.9, abs=0.05)
    assert torch.sigmoid(said)[other.hidden[:, 0] < -0.3].mean() == pytest.approx(0.2, abs=0.05)


def test_before_training_it_says_what_the_head_says():
    judged = AcceptanceHead(SIZE).judged(PROPOSALS, torch.ones(1, SIZE))
    np.testing.assert_allclose(judged.chances, PROPOSALS.chances, rtol=1e-5)
    assert judged.token_ids is PROPOSALS.token_ids and judged.entropy is PROPOSALS.entropy


@pytest.mark.parametrize(
    ("bias", "first"), [(2.0, 0.6 * np.exp(2) / (0.6 * np.exp(2) + 0.4)), (-3.0, None)]
)
def test_the_other_tokens_share_the_rest(bias, first):
    made = AcceptanceHead(SIZE).requires_grad_(False)
    made.output.bias += bias
    (chances,) = made.judged(PROPOSALS, torch.zeros(1, SIZE)).chances
    assert chances.sum() <= 1.0 and (np.diff(chances) <= 1e-9).all()
    if first is not None:
        np.testing.assert_allclose(
            chances, [first, (1 - first) * 0.5, (1 - first) * 0.25], rtol=1e-5
        )
    else:
        np.testing.assert_allclose(chances, chances[0])  # none is likelier than the first


@pytest.fixture(scope="module")
def head(target, texts, tmp_path_factory):
    """A trained head with what was learned beside it, wherever it tells more or not."""
    folder = train(target, texts, tmp_path_factory.mktemp("head"), num_tokens=2000)
    with pytest.MonkeyPatch.context() as patch:
        losses = iter([1.0, 0.5])
        patch.setattr(acceptance, "log_loss", lambda *tokens: next(losses))
        lines: list[str] = []
        acceptance.train_acceptance(str(target), texts, folder, AcceptanceSettings(), lines.append)
    assert "held-out draft tokens" in lines[-1]
    return folder


def test_it_is_written_beside_the_head_only_if_it_tells_more(
    target, texts, head, tmp_path, monkeypatch
):
    assert isinstance(read_acceptance(head, 32), AcceptanceHead)
    bare = shutil.copytree(head, tmp_path / "bare", ignore=shutil.ignore_patterns(FILE))
    assert read_acceptance(bare, 32) is None
    monkeypatch.setattr(acceptance, "log_loss", lambda *tokens: 1.0)
    lines: list[str] = []
    acceptance.train_acceptance(str(target), texts, bare, AcceptanceSettings(), lines.append)
    assert "nothing is written" in lines[-1] and not (bare / FILE).exists()


def test_a_file_of_another_head_or_a_damaged_one_is_named(head, tmp_path):
    with pytest.raises(ValueError, match=f"{FILE}.*delete"):
        read_acceptance(head, 16)
    (tmp_path / FILE).write_bytes((head / FILE).read_bytes()[:-100])
    with pytest.raises(OSError, match=FILE):
        read_acceptance(tmp_path, 32)


def test_heads_of_other_kinds_have_none(target, texts, head, tmp_path):
    other = shutil.copytree(head, tmp_path / "other")
    change_json(other / "config.json", {"speculators_model_type": "peagle"})
    with pytest.raises((ValueError, OSError)):
        acceptance.train_acceptance(str(target), texts, other, AcceptanceSettings(), quiet)
