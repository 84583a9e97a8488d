"""True acceptance: means, spreads, drift, common random numbers, confidence, what is found,
recordings."""

import math

import numpy as np
import pytest
from recorded_run import ToyRun

from smartspec.sim.world.acceptance import (
    FOUND_RUN_TOKENS,
    AcceptanceClass,
    GroundTruthAcceptance,
    Places,
    divergence,
    entropy,
)
from smartspec.sim.world.beta_table import BetaTable
from smartspec.sim.world.keyed_random import keyed_bits, request_keys, to_uniform
from smartspec.sim.world.recorded_acceptance import RecordedGroundTruth, Recording, read_recordings

K = 8
MIXED = (
    AcceptanceClass(0.8, decay=0.95, request_concentration=10, token_concentration=3),
    AcceptanceClass(0.4, request_concentration=6, token_concentration=1.5),
)


def make_ground_truth(*classes, num_requests=400, seed=0):
    ground_truth = GroundTruthAcceptance(classes, K, seed=seed)
    for request_id in range(num_requests):
        ground_truth.begin(request_id, request_id % len(classes))
    return ground_truth, np.arange(num_requests)


def at(request_ids, positions, now=0.0):
    return Places(request_ids, np.resize(positions, len(request_ids)), now)


def conditional_of(ground_truth, request_ids, position=0):
    return ground_truth.conditional(at(request_ids, position))


def expected_of(ground_truth, request_ids, now=0.0):
    return ground_truth.expected(at(request_ids, 0, now))


def many_positions(ground_truth, request_ids, num_steps=200):
    """conditional and uniform of non-overlapping drafts: two float [num_steps, R, K]."""
    drafts = range(0, K * num_steps, K)
    conditional = [conditional_of(ground_truth, request_ids, position) for position in drafts]
    uniform = [ground_truth.uniform(at(request_ids, p)) for p in drafts]
    return np.stack(conditional), np.stack(uniform)


def test_keyed_numbers_are_uniform_and_independent():
    keys = request_keys(0, np.arange(300))[:, None]
    streams = [to_uniform(keyed_bits(keys, stream, np.arange(300))) for stream in range(2)]
    other_seed = to_uniform(keyed_bits(request_keys(1, np.arange(300))[:, None], 0, np.arange(300)))
    numbers = streams[0]
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.bincount((numbers * 100).astype(int).ravel(), minlength=100)
    # chi-square of 99 degrees
    assert ((counts - 900) ** 2 / 900).sum() < 99 + 4.5 * math.sqrt(2 * 99)
    neighbours = [
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers, streams[1]),
    ]
    for one, another in [*neighbours, (numbers, other_seed)]:
        assert abs(np.corrcoef(one.ravel(), another.ravel())[0, 1]) < 4.5 / math.sqrt(one.size)


@pytest.mark.parametrize("concentration", [0.5, 2.0, 20.0, math.inf])
def test_beta_table_has_the_moments_of_beta(concentration):
    every_bin = np.arange(256, dtype=np.uint64) << np.uint64(56)
    for mean in (0.0, 0.03, 0.2, 0.5, 0.77, 1.0):
        values = BetaTable([concentration]).draw(np.array(mean), np.array(0), every_bin)
        assert values.mean() == pytest.approx(mean, abs=1e-6)
        assert values.var() == pytest.approx(
            mean * (1 - mean) / (concentration + 1), rel=0.04, abs=1e-9
        )
        rounding = 256 * np.finfo(float).eps
        assert (
            (np.diff(values) >= -rounding).all()
            and values.min() >= 0
            and values.max() <= 1 + rounding
        )


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_without_spread_decay_alone_tells_depths_apart(decay):
    ground_truth, ids = make_ground_truth(AcceptanceClass(0.8, decay=decay))
    conditional = ground_truth.conditional(at(ids, ids, 5.0))
    assert conditional == pytest.approx(np.tile(0.8 * decay ** np.arange(K), (len(ids), 1)))


def test_mixture_has_the_means_and_spread_of_its_classes():
    ground_truth, ids = make_ground_truth(*MIXED, num_requests=4000)
    expected = expected_of(ground_truth, ids)
    for class_id, (mean, concentration) in enumerate([(0.8, 10), (0.4, 6)]):
        first = expected[class_id::2, 0]
        assert abs(first.mean() - mean) < 4.5 * first.std() / math.sqrt(first.size)
        assert first.var() == pytest.approx(mean * (1 - mean) / (concentration + 1), rel=0.1)


def test_tokens_spread_around_the_mean_of_their_request():
    ground_truth, ids = make_ground_truth(*MIXED, num_requests=40)
    conditional, _ = many_positions(ground_truth, ids, 500)
    expected = expected_of(ground_truth, ids)
    std_errors = conditional.std(axis=0) / math.sqrt(len(conditional))
    z = (conditional.mean(axis=0) - expected) / np.maximum(std_errors, 1e-9)
    assert z.std() == pytest.approx(1.0, abs=0.25) and abs(z).max() < 5
    request = 1  # of class 1: the first depth has variance m (1 - m) / 2.5
    mean = expected[request, 0]
    assert conditional[:, request].var() == pytest.approx(mean * (1 - mean) / 2.5, rel=0.1)


def test_drawn_acceptance_matches_survival():
    ground_truth, ids = make_ground_truth(*MIXED)
    conditional, uniform = many_positions(ground_truth, ids)
    survived = np.cumprod(uniform < conditional, axis=2)
    survival = np.cumprod(expected_of(ground_truth, ids), axis=1)
    for class_id in (0, 1):
        for depth in range(K):
            drawn, probability = survived[:, class_id::2, depth], survival[class_id::2, depth]
            std_error = math.sqrt((probability * (1 - probability)).mean() / drawn.size)
            assert abs(drawn.mean() - probability.mean()) < 4.5 * std_error


def test_steps_jump():
    steps, ids = make_ground_truth(AcceptanceClass(0.9, changes=((10.0, 0.1), (15.0, 0.5))))
    values = [steps.conditional(at(ids, 0, now))[0, 0] for now in (0.0, 9.9, 10.0, 15.0)]
    assert values == pytest.approx([0.9, 0.9, 0.1, 0.5])


def test_drift_moves_requests_of_its_class_only_and_keeps_their_order():
    drifting = AcceptanceClass(0.8, request_concentration=8, changes=((10.0, 0.3),))
    ground_truth, ids = make_ground_truth(drifting, MIXED[1], num_requests=200)
    before, after = (expected_of(ground_truth, ids, now)[:, 0] for now in (0.0, 10.0))
    assert (before[0::2] > after[0::2]).all() and (before[1::2] == after[1::2]).all()
    assert (np.argsort(before[0::2]) == np.argsort(after[0::2])).mean() > 0.9


@pytest.mark.parametrize(
    "values_of", [GroundTruthAcceptance.uniform, GroundTruthAcceptance.conditional]
)
def test_common_random_numbers_do_not_depend_on_the_way_there(values_of):
    """Drafts that overlap, other batches, other begin order, other runs: a position stays what it
    is, and without decay so does its acceptance."""
    worlds = [GroundTruthAcceptance((MIXED[1],), K, seed=seed) for seed in (0, 0, 1)]
    world, other, another_seed = worlds
    ids, some = np.arange(10), np.array([3, 8])
    for each in worlds:
        for request_id in (8, 3, 4, 99) if each is other else range(10):
            each.begin(request_id)
    numbers = values_of(world, at(ids, 20))
    assert (values_of(other, at(some, 20)) == numbers[some]).all()
    assert (values_of(other, at(some, 23))[:, :-3] == numbers[some, 3:]).all()
    assert (values_of(another_seed, at(ids, 20)) != numbers).all() and numbers.std() > 0.1


def test_confidence_is_informative_noisy_and_miscalibrated():
    ground_truth, ids = make_ground_truth(MIXED[1])
    conditional = conditional_of(ground_truth, ids)
    confidence, disorder = ground_truth.confidence(at(ids, 0), conditional)
    assert confidence.shape == (len(ids), K) and confidence.min() > 0 and confidence.max() < 1
    accepted = ground_truth.uniform(at(ids, 0)) < conditional
    assert np.corrcoef(confidence.ravel(), accepted.ravel())[0, 1] > 0.4
    assert np.corrcoef(disorder.ravel(), accepted.ravel())[0, 1] < -0.3
    middle = (conditional > 0.3) & (conditional < 0.5)
    assert (
        confidence[middle].std() > 0.05
        and confidence[middle].mean() > conditional[middle].mean() + 0.02
    )


def test_confidence_tells_nothing_where_tokens_do_not_differ():
    ground_truth, ids = make_ground_truth(AcceptanceClass(0.6), num_requests=2000)
    confidence, _ = ground_truth.confidence(at(ids, 0), conditional_of(ground_truth, ids))
    accepted = ground_truth.uniform(at(ids, 0)) < 0.6
    assert abs(np.corrcoef(confidence.ravel(), accepted.ravel())[0, 1]) < 4.5 / math.sqrt(
        confidence.size
    )


def test_divergence_tells_acceptance_with_noise():
    ground_truth, ids = make_ground_truth(AcceptanceClass(0.6, token_concentration=2.0))
    places = at(ids, np.arange(len(ids)))
    acceptance = ground_truth.conditional(places)
    told = ground_truth.divergence(places, acceptance)
    correlation = np.corrcoef(np.log(np.maximum(acceptance, 1e-4)).ravel(), told.ravel())[0, 1]
    assert -0.98 < correlation < -0.5


def test_entropy_and_divergence():
    assert entropy(np.array([1 / 21, 1.0])) == pytest.approx([math.log(21), 0.0], abs=1e-9)
    assert (np.diff(entropy(np.linspace(0.05, 1, 50))) <= 1e-12).all()
    acceptance = np.linspace(0.001, 1, 50)
    assert divergence(np.array([1.0, 0.5])) == pytest.approx([0.0, math.log(2)])
    # Bretagnolle-Huber
    assert (1 - acceptance <= np.sqrt(1 - np.exp(-divergence(acceptance))) + 1e-12).all()
    assert np.isfinite(divergence(np.zeros(1))).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_is_found_has_its_share_and_come_in_stretches(share):
    ground_truth, ids = make_ground_truth(AcceptanceClass(0.5, found_share=share))
    found = np.stack([ground_truth.found(at(ids, p)).lengths > 0 for p in range(200)])
    num_stretches = found.size / FOUND_RUN_TOKENS
    assert abs(found.mean() - share) <= 4.5 * math.sqrt(share * (1 - share) / num_stretches)
    changes = (found[1:] != found[:-1]).mean()  # where a stretch ends and the two sides differ
    assert changes == pytest.approx(2 * share * (1 - share) / FOUND_RUN_TOKENS, rel=0.1)
    by_position = (found[1:] != found[:-1]).mean(axis=1)
    assert by_position.max() <= changes + 0.1  # requests do not change in step


def test_requests_are_forgotten_and_may_begin_again_in_another_class():
    ground_truth, ids = make_ground_truth(*MIXED, num_requests=3)
    before = expected_of(ground_truth, ids)[2].copy()
    ground_truth.end(1)
    ground_truth.end(77)
    with pytest.raises(KeyError, match="1"):
        conditional_of(ground_truth, ids)
    ground_truth.begin(2, 1)
    assert (expected_of(ground_truth, ids[2:]) != before).all()


def test_recordings_of_a_log():
    """Each step tells of the tokens it accepted and of one rejection; of a bonus token nothing is
    known."""
    run = ToyRun("fixed:3", 50, num_rows=3)
    recordings = read_recordings(run.records)
    assert len(recordings) == 3
    for row, recording in enumerate(recordings):
        chains = np.minimum(run.chains[:, row], 3)
        expected = [
            outcome
            for chain in chains
            for outcome in [1.0] * chain + [0.0 if chain < 3 else np.nan]
        ]
        assert np.array_equal(recording.outcomes, expected, equal_nan=True)
        assert recording.found.tolist() == recording.match_lengths.tolist() == [5] * len(expected)
    assert not any(
        recording.match_lengths.any()
        for recording in read_recordings(ToyRun("fixed:3", 5, use_model=True).records)
    )


def make_recording(*outcomes: float, length: int = 4, match: int = 2) -> Recording:
    num = len(outcomes)
    return Recording(np.array(outcomes, dtype=float), np.full(num, length), np.full(num, match))


def test_a_recording_is_replayed_position_by_position():
    recordings = [
        make_recording(1, 1, 0, 0),
        make_recording(1, np.nan, 1, 1, 1, 1, 0, length=0, match=0),
    ]
    ground_truth = RecordedGroundTruth([*recordings, make_recording(np.nan, length=9, match=7)], 4)
    for request_id in (3, 4, 5):
        ground_truth.begin(request_id, class_id=3)
    ids = np.array([3, 4, 5])
    first = conditional_of(ground_truth, ids, 1)
    overall = 7 / 10
    assert first.tolist() == [
        [1, 1, 0, 0],
        [1, pytest.approx(5 / 6), 1, 1],
        [pytest.approx(overall)] * 4,
    ]
    assert ground_truth.conditional(at(ids[:2], [4, 6], 9.0)).tolist() == [
        [0, 1, 1, 0],
        [1, 0, 1, pytest.approx(5 / 6)],
    ]
    rates = ground_truth.expected(at(ids, 1))[:, 0].tolist()
    assert rates == pytest.approx([0.5, 5 / 6, overall])
    found = ground_truth.found(at(ids, 7))
    assert found.lengths.tolist() == [4, 0, 4] and found.match_lengths.tolist() == [2, 0, 7]


def test_confidence_of_a_recording_does_not_know_the_outcome():
    rng = np.random.default_rng(0)
    ground_truth = RecordedGroundTruth(
        [make_recording(*(rng.random(500) < 0.6)) for _ in range(200)], K
    )
    ids = np.arange(200)
    for request_id in ids.tolist():
        ground_truth.begin(request_id)
    conditional = conditional_of(ground_truth, ids, 1)
    confidence, _ = ground_truth.confidence(at(ids, 1), conditional)
    assert (
        abs(np.corrcoef(confidence.ravel(), conditional.ravel())[0, 1])
        < 4.5 / math.sqrt(conditional.size) + 0.05
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AcceptanceClass(1.2), "mean 1.2 does not lie between 0 and 1"),
        (lambda: AcceptanceClass(0.5, changes=((1.0, -0.1),)), "mean -0.1 does"),
        (
            lambda: GroundTruthAcceptance((AcceptanceClass(0.5, token_concentration=0.0),), 4),
            "concentration is 0",
        ),
        (lambda: AcceptanceClass(0.5, changes=((5.0, 0.1), (1.0, 0.2))), "ascending order"),
        (lambda: RecordedGroundTruth([], 4), "0 recordings"),
        (
            lambda: RecordedGroundTruth([make_recording(np.nan)], 4),
            "1 recordings without a single tested",
        ),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
