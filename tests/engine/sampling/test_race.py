"""The target's own token by a race: of the target's distribution, and foreseen by who knows it."""

import numpy as np
import pytest
import torch
from markov_model import p_of_fit

from smartspec.engine.runtime.drafter_kinds import may_draw
from smartspec.engine.sampling.race import NAMED, foreseen_chances, run_race
from smartspec.engine.sampling.randomness import position_keys

# So many show a deviation of a tenth of each of a hundred probabilities nearly always.
NUM, LEAST = 12_000, 1e-4
SEEDS, POSITIONS = np.arange(NUM) % 100, np.arange(NUM) // 100
KEYS = position_keys(SEEDS, POSITIONS)


def rows_of(probs: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.tile(probs.astype(np.float32), (NUM, 1)))


@pytest.mark.parametrize("num_named", [0, 1, 5])
def test_tokens_win_as_often_as_the_distribution_says(num_named):
    """Some with a number of their own and many that run together."""
    random = np.random.default_rng(num_named)
    probs = np.concatenate([random.uniform(2, 9, num_named) / 50, random.uniform(0.7, 1, 90) / 90])
    probs[-7:] = 0.0
    probs /= probs.sum()
    assert (probs >= NAMED).sum() == num_named
    found = np.bincount(run_race(rows_of(probs), SEEDS, POSITIONS).numpy(), minlength=len(probs))
    assert p_of_fit(found, probs) > LEAST


def test_of_named_tokens_alone_no_other_wins():
    probs = np.array([0.5, 0.0, 0.3, 0.2])
    found = np.bincount(run_race(rows_of(probs), SEEDS, POSITIONS).numpy(), minlength=4)
    assert p_of_fit(found, probs) > LEAST


def test_a_row_is_drawn_alike_alone_and_in_a_batch():
    logits = 3 * torch.randn(200, 5000, generator=torch.Generator().manual_seed(0))
    probs, seeds, positions = logits.softmax(-1), SEEDS[:200], POSITIONS[:200]
    alone = [
        run_race(probs[i : i + 1], seeds[i : i + 1], positions[i : i + 1]).item()
        for i in range(200)
    ]
    assert run_race(probs, seeds, positions).tolist() == alone


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.5])
def test_who_knows_the_targets_distribution_foresees_its_token(temperature):
    """Of tokens that are all named, whatever the temperature."""
    logits = np.random.default_rng(0).normal(0, 0.3, 8)
    chances, worth = np.exp(logits), np.exp(logits / temperature)
    assert (worth / worth.sum() > NAMED).all()
    winners = run_race(rows_of(worth / worth.sum()), SEEDS, POSITIONS).numpy()
    token_ids = np.tile(np.arange(8), (NUM, 1))
    listed = np.tile(chances / chances.sum(), (NUM, 1))
    foreseen = foreseen_chances(listed, token_ids, KEYS, np.full(NUM, temperature))
    assert (foreseen.argmax(axis=1) == winners).all()
    np.testing.assert_allclose(foreseen.sum(axis=1), 1.0)


def test_who_is_near_it_foresees_as_much_as_the_paper_says():
    """At least (1 - TV) / (1 + TV) of the tokens (Daliri et al., theorem 3), and more than the
    likeliest token wins."""
    random = np.random.default_rng(1)
    p = random.dirichlet(np.full(6, 2.0)) * 0.88 + 0.02
    q = random.dirichlet(np.full(6, 2.0)) * 0.28 + p * 0.72
    distance = np.abs(p - q).sum() / 2
    token_ids = np.tile(np.arange(6), (NUM, 1))
    foreseen = foreseen_chances(np.tile(q, (NUM, 1)), token_ids, KEYS, np.ones(NUM)).argmax(axis=1)
    share = (foreseen == run_race(rows_of(p), SEEDS, POSITIONS).numpy()).mean()
    assert share > (1 - distance) / (1 + distance) - 0.01
    assert share > p[q.argmax()] + 0.2


def test_for_greedy_requests_chances_are_the_drafters():
    listed = np.array([[0.6, 0.2, 0.1]])
    foreseen = foreseen_chances(listed, np.array([[5, 9, 2]]), KEYS[:1], np.zeros(1))
    np.testing.assert_allclose(foreseen, listed)


def test_beside_a_drafter_that_draws_nobody_may_look():
    own = "smartspec.engine.drafting.model.drafter:DraftModel"
    assert [may_draw(name, "some/model") for name in ("recycling", "other/model", own)] == [
        False,
        True,
        True,
    ]
