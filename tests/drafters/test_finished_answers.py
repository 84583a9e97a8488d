"""Matches in finished answers against a search of all places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import as_text

from smartspec.drafters import finished_answers
from smartspec.drafters.finished_answers import END, MAX_MATCH, MIN_MATCH, FinishedAnswers
from smartspec.drafters.recycling import pack

answers = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=25), max_size=8)


def filled(some, **options) -> FinishedAnswers:
    found = FinishedAnswers(**options)
    for answer in some:
        found.add(answer)
    found.index(10**6)
    return found


def brute(some, size: int, text: list[int], num_tokens: int) -> set[tuple[int, tuple[int, ...]]]:
    """Length of each match among the newest tokens, and what followed."""
    lie = [token for answer in some for token in (*answer, END)][-size:]
    found = set()
    for place in range(1, len(lie)):
        match = 0
        while (
            match < min(place, len(text), MAX_MATCH) and text[-1 - match] == lie[place - 1 - match]
        ):
            match += 1
        if match >= MIN_MATCH:
            rest = lie[place : place + num_tokens]
            found.add((match, tuple(rest[: rest.index(END)] if END in rest else rest)))
    return found


@given(
    some=answers,
    text=st.lists(st.integers(0, 2), min_size=3, max_size=40),
    size=st.integers(5, 200),
)
def test_agrees_with_a_search_of_all_places(some, text, size):
    expected = brute(some, size, text, 4)
    for memory in (
        filled(some, num_tokens=size),
        FinishedAnswers(size, as_text([token for answer in some for token in (*answer, END)])),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finished_answers, "MAX_TRIED", 10**6)
            found = memory.matches(as_text(text), pack(as_text(text)), 4)
        assert {(each.match, tuple(each.tokens)) for each in found} == expected
        assert [each.match for each in found] == sorted(
            (each.match for each in found), reverse=True
        )


def test_few_places_are_tried_the_most_recent_first():
    memory = filled([[1, 2, 3, number] for number in range(50)])
    found = memory.matches(as_text([1, 2, 3]), pack(as_text([1, 2, 3])), 1)
    assert [list(each.tokens) for each in found] == [
        [49 - number] for number in range(finished_answers.MAX_TRIED)
    ]


def test_what_is_added_is_taken_in_bit_by_bit():
    memory = FinishedAnswers()
    memory.add(range(100))
    memory.index(50)
    text = lambda last: (  # noqa: E731
        as_text(range(last - 5, last + 1)),
        pack(as_text(range(last - 5, last + 1))),
        2,
    )
    assert memory.matches(*text(30))[0].tokens == [31, 32] and not memory.matches(*text(70))
    memory.index(60)
    assert memory.matches(*text(70))[0].tokens == [71, 72]


def test_what_waits_and_what_is_remembered_is_bounded_and_the_newest_is_kept():
    """More is finished than is taken in."""
    memory = FinishedAnswers(num_tokens=1000)
    for number in range(300):
        memory.add(range(number, number + 20))
        memory.index(1)
        assert (
            memory.num_unread == sum(map(len, memory._unread)) - memory._num_read <= 1000 + 2 * 21
        )
    memory.index(10**6)
    assert not memory.num_unread
    assert len(memory._tokens) == len(memory._before) == 1000
    assert not memory.matches(as_text(range(10)), pack(as_text(range(10))), 2)
    assert memory.matches(as_text(range(300, 310)), pack(as_text(range(300, 310))), 2)
