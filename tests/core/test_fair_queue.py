"""Whose request is next, and that no client waits for one that has more."""

import fakes
import pytest
from fakes import make_core, serve

from smartspec.core.fair_queue import MAX_IDLE_CLIENTS, FairQueue
from smartspec.core.origin import Origin
from smartspec.core.request import Request


def make_request(
    request_id: int, client: str = "", prompt: int = 4, max_tokens: int = 8, **origin
) -> Request:
    origin = Origin(client, **origin)
    return fakes.make_request(request_id, [request_id + 1] * prompt, max_tokens, origin=origin)


def order(queue: FairQueue, most: int = 99) -> list[int]:
    """Takes out so many, or all; each request costs its client ten tokens."""
    ids = []
    while queue and len(ids) < most:
        request = queue.pop()
        queue.charge(request.origin, 10)
        ids.append(request.request_id)
    return ids


def queue_of(*requests: Request) -> FairQueue:
    queue = FairQueue()
    for request in requests:
        queue.add(request)
    return queue


def test_one_client_is_served_in_order_of_arrival():
    assert order(queue_of(*(make_request(i) for i in range(5)))) == [0, 1, 2, 3, 4]


def test_clients_take_turns_however_many_requests_one_has():
    queue = queue_of(
        *(make_request(i, "crowd") for i in range(6)),
        make_request(6, "one"),
        make_request(7, "one"),
    )
    assert order(queue) == [0, 6, 1, 7, 2, 3, 4, 5]


def test_a_share_of_two_gets_two_turns():
    requests = [make_request(i, "small") for i in range(4)]
    requests += [make_request(i, "large", share=2.0) for i in range(4, 8)]
    served = order(queue_of(*requests), 6)
    assert sum(request_id >= 4 for request_id in served) == 4


def test_a_client_that_was_away_is_owed_nothing():
    queue = queue_of(*(make_request(i, "busy") for i in range(10)))
    order(queue, 8)
    for i in range(10, 14):
        queue.add(make_request(i, "back"))
    assert order(queue)[:4] in ([10, 8, 11, 9], [8, 10, 9, 11], [10, 11, 8, 12], [10, 8, 11, 12])


def test_priority_orders_the_requests_of_a_client_and_not_clients():
    queue = queue_of(
        make_request(0, "a"), make_request(1, "b", priority=5), make_request(2, "b", priority=-5)
    )
    assert order(queue) == [0, 2, 1]


def test_put_back_is_next_and_remove_finds_any():
    queue = queue_of(*(make_request(i, "ab"[i % 2]) for i in range(6)))
    first = queue.pop()
    queue.put_back(first)
    assert queue.peek() is first and len(queue) == 6
    assert (
        queue.remove(3).request_id == 3
        and queue.remove(first.request_id) is first
        and queue.remove(99) is None
    )
    assert sorted(request.request_id for request in queue) == [1, 2, 4, 5] and len(queue) == 4
    assert sorted(order(queue)) == [1, 2, 4, 5] and not queue


def test_clients_that_left_are_forgotten():
    queue = FairQueue()
    for i in range(3 * MAX_IDLE_CLIENTS):
        queue.add(make_request(i, f"client {i}"))
        queue.charge(queue.pop().origin, 1)
    assert len(queue._served) <= MAX_IDLE_CLIENTS + 1


@pytest.mark.parametrize("limits", [{"num_slots": 4}, {"num_slots": 8, "num_blocks": 24}])
def test_a_client_without_any_running_does_not_wait_for_one_that_has_several(limits):
    core = make_core(**limits)
    for i in range(12):
        core.add_request(make_request(i, "crowd", max_tokens=40))
    for now in range(6):
        core.step(float(now))
    newcomer = make_request(12, "one")
    core.add_request(newcomer)
    for now in range(6, 10):
        core.step(float(now))
    assert newcomer.num_output_tokens > 0
    num_preempted = sum(
        request.num_preemptions > 0
        for request in (*core.scheduler.waiting, *core.scheduler.running)
    )
    assert num_preempted >= 1
    while core.has_work:
        core.step(0.0)
    assert core.scheduler.blocks.num_used_blocks == 0


def test_one_running_request_each_is_fair():
    core = make_core(num_slots=2)
    for i in range(4):
        core.add_request(make_request(i, f"client {i}", max_tokens=20))
    running = []
    while core.has_work:
        core.step(0.0)
        running += core.scheduler.running
    assert not any(request.num_preemptions for request in running)


def test_prefixes_are_shared_within_a_salt_alone():
    core = make_core()

    def cached_tokens(request_id: int, salt: str) -> int:
        request = fakes.make_request(request_id, [7] * 20, 2, origin=Origin(cache_salt=salt))
        serve(core, [request])
        return request.num_cached_tokens

    assert [cached_tokens(i, salt) > 0 for i, salt in enumerate(["", "", "a", "a", "b", ""])] == [
        False, True, False, True, False, True,
    ]  # fmt: skip


def test_running_requests_of_another_salt_are_no_prefix_either():
    core = make_core()
    requests = [
        fakes.make_request(i, [7] * 20, 8, origin=Origin(cache_salt=salt))
        for i, salt in enumerate(["a", "b", "a"])
    ]
    serve(core, requests)
    assert [request.num_cached_tokens for request in requests] == [0, 0, 19], "all but the last"


def test_who_is_passed_over_keeps_its_place():
    requests = [make_request(i, "crowd") for i in range(4)]
    queue = queue_of(*requests[:3], make_request(4, "one"))
    queue.put_back(requests[3])
    for _ in range(4):
        queue.pass_over()
    assert queue.pop().request_id == 4
    assert queue.peek() is None and len(queue) == 4
    queue.look_again()
    assert order(queue) == [3, 0, 1, 2]
