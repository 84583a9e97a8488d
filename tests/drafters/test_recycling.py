from functools import partialmethod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import as_text

from smartspec.core.batch import NO_DRAFT, Batch, Verification
from smartspec.core.origin import Origin
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.recycling import MAX_CONTEXT, MAX_SALTS, RecyclingDrafter

Texts = list[tuple[list[int], tuple[int, ...]]]


def naive_draft(texts: Texts, text: list[int], num_draft: int) -> tuple[list[int], int]:
    """The draft, and the length of the context that began it; from every (context, next token) in
    the order it was learned: the longest known context speaks, the newest entry."""
    pairs = []
    for known, emitted in texts:
        for token in emitted:
            pairs.append((known[-MAX_CONTEXT:], token))
            known = [*known, token]
    written, match = list(text), 0
    for _ in range(num_draft):
        for length in range(MAX_CONTEXT, 0, -1):
            found = [token for context, token in pairs if context[-length:] == written[-length:]]
            if found:
                written.append(found[-1])
                match = match or length
                break
        else:
            break
    return written[len(text) :], match


def taught(texts: Texts, **options) -> RecyclingDrafter:
    drafter = RecyclingDrafter(**{"max_draft_tokens": 4, **options})
    for known, emitted in texts:
        drafter.learn(as_text(known), emitted)
    return drafter


tokens = st.integers(0, 3)
texts = st.tuples(st.lists(tokens, min_size=3, max_size=8), st.lists(tokens, max_size=6).map(tuple))


@given(
    learned=st.lists(texts, max_size=6),
    text=st.lists(tokens, min_size=3, max_size=8),
    num_draft=st.integers(1, 9),
)
def test_agrees_with_the_naive_search(learned, text, num_draft):
    draft = taught(learned, max_draft_tokens=num_draft).propose(as_text(text))
    expected = naive_draft(learned, text, num_draft)
    assert draft.token_ids.dtype == np.int32 and draft.probs is None
    assert (draft.token_ids.tolist(), draft.match_length) == expected


@pytest.mark.parametrize("largest_id", [2**18, 2**20 - 2])
def test_large_token_ids_and_texts_shorter_than_a_context(largest_id):
    drafter = taught([([largest_id], (0, largest_id))])
    assert drafter.propose(as_text([largest_id])).token_ids.tolist() == [
        0,
        largest_id,
        0,
        largest_id,
    ]
    assert drafter.propose(as_text([0])).token_ids.tolist()[0] == largest_id


def test_a_full_table_forgets_the_old_and_confuses_nothing():
    random = np.random.default_rng(0)
    drafter = RecyclingDrafter(max_draft_tokens=1, num_entries=50)
    newest = {}
    for _ in range(500):
        text, token = random.integers(0, 2000, 3), int(random.integers(0, 2000))
        drafter.learn(as_text(text.tolist()), (token,))
        newest[int(text[-1])] = token
    drafts = {last: drafter.propose(as_text([last])).token_ids.tolist() for last in newest}
    known = {last: draft[0] for last, draft in drafts.items() if draft}
    assert 0 < len(known) <= 50
    assert all(newest[last] == token for last, token in known.items())


def test_what_one_salt_taught_is_not_proposed_to_another():
    drafter = taught([([1, 2, 3], (4, 5))])
    assert drafter.of_salt("") is drafter and drafter.of_salt("a") is drafter.of_salt("a")
    drafter.of_salt("a").learn(as_text([1, 2, 3]), (6,))
    drafts = {
        salt: drafter.of_salt(salt).propose(as_text([1, 2, 3])).token_ids.tolist()
        for salt in ("", "a", "b")
    }
    assert drafts == {"": [4, 5], "a": [6], "b": []}


def test_salts_are_forgotten_beyond_a_number():
    drafter = taught([])
    for number in range(MAX_SALTS + 1):
        drafter.of_salt(f"salt {number}").learn(as_text([1]), (2,))
        drafter.of_salt("salt 0")
    known = [
        len(drafter.of_salt(f"salt {number}").propose(as_text([1]))) > 0
        for number in (0, MAX_SALTS, 1)
    ]
    assert known == [True, True, False]


def requests(salts) -> Batch:
    some = [
        Request(number, [1], SamplingParams(max_tokens=99), seed=0, origin=Origin(cache_salt=salt))
        for number, salt in enumerate(salts)
    ]
    return Batch(decoding=tuple(some))


def step(drafter, batch: Batch, emitted=(2, 3)) -> None:
    """Drafts are looked for, then tokens are emitted."""
    drafter.begin_step(batch)
    drafter.view(batch)
    outcomes = [Verification(emitted, 0) for _ in batch.decoding]
    drafter.observe(batch, np.zeros(len(outcomes), dtype=np.int64), outcomes, ())
    for request in batch.decoding:
        request.append(emitted)


@pytest.fixture
def kind() -> type:
    return RecyclingDrafter


def test_salts_of_one_key_displace_nothing_of_another(kind):
    drafter = kind(max_draft_tokens=2)
    for salt in ("", "b", "b own"):
        drafter.of_salt(salt).learn(as_text([1]), (2,))
    for number in range(3 * MAX_SALTS):
        drafter.of_salt(f"a {number}").learn(as_text([1]), (2,))
        drafter.of_salt(f" {number}").learn(as_text([1]), (2,))
    assert all(len(drafter.of_salt(salt).propose(as_text([1]))) for salt in ("", "b", "b own"))
    assert len([*drafter._of_salt]) == 2 * MAX_SALTS + 2


def test_many_salts_at_once_do_not_make_tables_in_every_step(kind, monkeypatch):
    made = []
    monkeypatch.setattr(kind, "__init__", partialmethod(noted, made, kind.__init__))
    drafter = kind(max_draft_tokens=2)
    batch = requests(["b", *(f"a {number}" for number in range(3 * MAX_SALTS))])
    for _ in range(10):
        step(drafter, batch)
    assert len(made) <= 2 + MAX_SALTS + 1, (
        "ours, an empty one, and one for each salt that is learned from"
    )
    known = [drafter._known(request.origin.cache_salt) is not None for request in batch.decoding]
    assert known[0] and known.count(True) == MAX_SALTS + 1


def noted(self, made, init, **options) -> None:
    made.append(self)
    init(self, **options)


def test_looking_for_a_draft_makes_no_table():
    drafter = RecyclingDrafter(max_draft_tokens=2)
    for number in range(10):
        (request,) = requests([f"a {number}"]).decoding
        assert drafter.propose_to(request) is NO_DRAFT
    assert not [*drafter._of_salt]


def test_an_impossible_size_is_refused():
    with pytest.raises(ValueError, match="num_entries must be at least 1, got 0"):
        taught([], num_entries=0)
