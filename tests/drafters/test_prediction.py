"""Predicted outputs: where the answer stands in the guess, and what is drafted there."""

import gc

import numpy as np
import pytest
from token_arrays import as_text

from smartspec.core.batch import Batch, Verification
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import SpeculationOptions
from smartspec.drafters.prediction import MAX_SCANNED, Alignment, PredictionDrafter

GUESS = np.arange(100, 140, dtype=np.int32)


def drafted(guess, answer, num_tokens=4) -> list[tuple[int, ...]]:
    """The paths of the draft after that answer, read at once."""
    alignment = Alignment(as_text(guess))
    alignment.follow(as_text(answer))
    return alignment.draft(num_tokens).paths[1:]


def chain_of(*tokens: int) -> list[tuple[int, ...]]:
    return [tokens[:length] for length in range(1, len(tokens) + 1)]


def request_of(guess, answer=(), request_id=0) -> Request:
    options = SpeculationOptions(predicted_token_ids=tuple(guess))
    request = Request(
        request_id, [1, 2], SamplingParams(max_tokens=200), seed=0, speculation=options
    )
    request.append(tuple(answer))
    return request


def test_it_begins_at_the_beginning_and_goes_on_where_the_answer_is():
    assert drafted(GUESS, []) == chain_of(100, 101, 102, 103)
    assert drafted(GUESS, [100, 101]) == chain_of(102, 103, 104, 105)
    assert drafted(GUESS, GUESS[:-2]) == chain_of(138, 139)
    assert drafted(GUESS, GUESS) == []


def test_the_place_counts_not_the_most_recent_or_the_first_of_equal_words():
    repeated = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4, 5, 7]
    assert drafted(repeated, repeated[:11], 1) == [(8,)]
    assert drafted(repeated, repeated[:5], 1) == [(9,)]
    assert drafted(repeated, repeated[:17], 1) == [(7,)]


def test_after_a_replaced_token_it_goes_on_behind_it_or_at_it():
    paths = drafted(GUESS, [*GUESS[:10], 7], 8)
    assert set(chain_of(111, 112)) <= set(paths) and (110,) in paths
    assert drafted(GUESS, [*GUESS[:10], 7, *GUESS[11:14]]) == chain_of(114, 115, 116, 117)


def test_it_finds_the_place_again_after_insertions_and_deletions():
    assert drafted(GUESS, [*GUESS[:10], 7, 8, 9, *GUESS[10:13]]) == chain_of(113, 114, 115, 116)
    assert drafted(GUESS, [*GUESS[:10], *GUESS[20:23]]) == chain_of(123, 124, 125, 126)
    # words before the answer
    assert drafted(GUESS, [7, 8, 9, *GUESS[:3]]) == chain_of(103, 104, 105, 106)


def test_a_longer_match_goes_before_a_nearer_one():
    guess = [1, 2, 3, 4, 5, 6, 7, 50, 4, 60, 1, 2, 9, 4, 70]
    # After the divergence, 4 stands nearer at 50, 4; but 9, 4 is the longer match.
    assert drafted(guess, [1, 2, 3, 8, 9, 4], 1)[0] == (70,)


def test_of_equal_matches_the_nearest_behind_the_divergence_is_the_first_branch():
    guess = [1, 2, 3, 4, 8, 2, 3, 5, 50, 2, 3, 5, 60]
    alignment = Alignment(as_text(guess))
    alignment.follow(as_text([1, 2, 3, 5]))
    draft = alignment.draft(8)
    assert not draft.is_chain
    assert draft.token_ids[draft.parents < 0].tolist() == [50, 60]


@pytest.mark.parametrize("num_tokens", [1, 3, 10, 100])
def test_a_tree_is_in_order_and_no_longer_than_wanted(num_tokens):
    random = np.random.default_rng(3)
    guess = random.integers(0, 6, 300)
    alignment, answer = Alignment(as_text(guess)), random.integers(0, 6, 80)
    num_trees = 0
    for length in range(1, 80):
        alignment.follow(answer[:length])
        draft = alignment.draft(num_tokens)
        assert len(draft) <= (num_tokens if draft.is_chain else min(num_tokens, 63))
        assert (draft.parents < np.arange(len(draft))).all()
        assert len(set(draft.paths)) == len(draft) + 1
        if not draft.is_chain:
            num_trees += 1
            chances = np.ones(len(draft) + 1)
            for node, (parent, confidence) in enumerate(
                zip(draft.parents, draft.confidence, strict=True)
            ):
                chances[node] = chances[parent] * confidence
            assert (np.diff(chances[:-1]) <= 1e-12).all()
    assert num_trees > 5 or num_tokens == 1


def test_reading_step_by_step_is_reading_at_once():
    random = np.random.default_rng(4)
    guess, answer = random.integers(0, 8, 60), random.integers(0, 8, 50)
    alignment = Alignment(as_text(guess))
    for length in range(0, 50, 7):
        alignment.follow(answer[:length])
        assert alignment.draft(6).paths[1:] == drafted(guess, answer[:length], 6)


def test_requests_are_isolated_and_those_without_a_guess_get_nothing():
    drafter = PredictionDrafter(max_draft_tokens=3)
    requests = (
        request_of([5, 6, 7, 8], [5]),
        request_of([9, 10, 11], request_id=1),
        request_of([], request_id=2),
    )
    batch = Batch(decoding=requests)
    drafter.begin_step(batch)
    assert drafter.view(batch).lengths.tolist() == [3, 3, 0]
    drafts = drafter.draft(batch, np.array([3, 3, 0]), None)
    assert [draft.token_ids.tolist() for draft in drafts] == [[6, 7, 8], [9, 10, 11], []]


def test_it_counts_what_was_accepted_and_rejected():
    drafter = PredictionDrafter(max_draft_tokens=3)
    one, other = request_of([5, 6, 7, 8]), request_of([5, 6, 7, 8], request_id=1)
    batch = Batch(decoding=(one, other))
    drafter.begin_step(batch)
    drafter.view(batch)
    drafter.observe(batch, np.array([3, 0]), (Verification((5, 9), 1), Verification((4,), 0)), ())
    assert (one.accepted_prediction_tokens, one.rejected_prediction_tokens) == (1, 2)
    assert (other.accepted_prediction_tokens, other.rejected_prediction_tokens) == (0, 0)


def test_what_is_known_of_a_request_goes_with_it():
    drafter = PredictionDrafter(max_draft_tokens=3)
    request = request_of([5, 6, 7])
    assert len(drafter.propose_to(request)) and len(drafter._alignments) == 1
    del request
    gc.collect()
    assert not drafter._alignments


def by_distance(guess, token, certain) -> list[int]:
    """Places after that token: those not before the last certain one, the nearest first, then those
    before it."""
    places = [at + 1 for at, each in enumerate(guess) if each == token]
    return sorted(places, key=lambda place: (place <= certain, abs(place - certain)))


@pytest.mark.parametrize("certain", [0, 1, 700, 1999])
def test_of_many_places_the_nearest_are_compared_and_nothing_is_sorted(certain, monkeypatch):
    compared, guess = [], as_text([5, 6, 5, 7] * 500)
    alignment = Alignment(guess)
    alignment._certain = certain
    lengths = alignment._match_lengths
    monkeypatch.setattr(
        alignment,
        "_match_lengths",
        lambda ends, answer: (compared.append(ends), lengths(ends, answer))[1],
    )
    monkeypatch.setattr(np, "argsort", None)
    alignment._found_again(as_text([9, 5]))
    assert (compared[0] + 1).tolist() == by_distance(guess.tolist(), 5, certain)[:MAX_SCANNED]
