"""A long prompt takes a small part of each step, so that no other request waits for all of it."""

import pytest
from fakes import expected_of, make_core, make_request

from smartspec.core.engine_core import EngineCore
from smartspec.core.prefill_room import PrefillRoom
from smartspec.core.request import Request

LONG = [1] * 50


def chunks_of_steps(core: EngineCore, *requests: Request) -> list[dict[int, int]]:
    """Prompt tokens of each step by request id, until every request has ended as it would alone."""
    steps = []
    schedule = core.scheduler.schedule

    def noting_chunks():
        batch = schedule()
        ids = [request.request_id for request in batch.prefill]
        steps.append(dict(zip(ids, batch.num_prefill_tokens, strict=True)))
        return batch

    core.scheduler.schedule = noting_chunks
    for request in requests:
        core.add_request(request)
    while core.has_work:
        core.step(float(len(steps)))
    assert all(request.output_token_ids.tolist() == expected_of(request) for request in requests)
    return steps


def test_a_long_prompt_that_is_alone_takes_whole_steps():
    assert chunks_of_steps(make_core(threshold=4), make_request(0, LONG))[:3] == [
        {0: 16},
        {0: 16},
        {0: 16},
    ]


def test_beside_others_it_takes_little_and_they_start_at_once():
    core = make_core(num_blocks=60, threshold=4)
    steps = chunks_of_steps(core, make_request(0, LONG), make_request(1, [2, 3, 4], max_tokens=3))
    assert steps[0] == {0: 4, 1: 3}
    assert steps[1] == {0: 4}, "while the other one decodes"


def test_the_second_long_prompt_waits_and_a_short_one_passes_it():
    requests = [
        make_request(i, prompt, max_tokens=30)
        for i, prompt in enumerate(([1] * 20, [2] * 20, [3, 4]))
    ]
    steps = chunks_of_steps(make_core(num_blocks=60, threshold=4), *requests)
    assert steps[0] == {0: 4, 2: 2}
    assert all(len([i for i in step if step[i] == 4]) == 1 for step in steps[:4])


def test_those_that_wait_for_a_prefix_under_way_let_others_pass():
    """Eight equal prompts are computed once, and nobody waits for that."""
    requests = [make_request(i, LONG, max_tokens=2) for i in range(8)]
    other = make_request(8, [2, 3, 4], max_tokens=2)
    steps = chunks_of_steps(make_core(num_blocks=80, threshold=4), *requests, other)
    assert steps[0] == {0: 4, 8: 3}
    assert all(request.num_cached_tokens >= 48 for request in requests[1:])


def test_after_a_failed_step_those_that_it_passed_over_can_be_aborted():
    core = make_core()
    core.add_request(make_request(0, [1]))
    core.scheduler.waiting.pass_over()
    core.scheduler.start_over()
    core.abort(0)
    assert not core.has_work


def test_the_blocks_of_a_prompt_under_way_are_not_given_to_who_comes_later():
    core = make_core(num_blocks=17, threshold=4)
    long = make_request(0, LONG, max_tokens=2)
    later = [make_request(i, [i, 5, 6, 7], max_tokens=20) for i in range(1, 8)]
    chunks_of_steps(core, long, *later)
    assert long.num_preemptions == 0


@pytest.mark.parametrize(("wanted", "taken"), [((9, 9, 3), [5, 0, 3]), ((3, 9, 9), [3, 5, 0])])
def test_one_long_prompt_takes_part_in_a_step(wanted, taken):
    room = PrefillRoom(16, threshold=5)
    requests = [make_request(i, [1] * size) for i, size in enumerate(wanted)]
    assert [room.take(request) for request in requests] == taken
    assert room.tokens == 16 - sum(taken)
