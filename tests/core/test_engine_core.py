"""The step loop on the hash model: outputs never depend on lengths, chunks, preemptions, reuse or
cancellations."""

import numpy as np
import pytest
from fakes import continuation, expected_of, make_core, make_request
from hypothesis import given
from hypothesis import strategies as st

from smartspec.core.blocks import Wipe
from smartspec.core.engine_core import EngineCore
from smartspec.core.prefill_room import SCORED_CHUNK
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams


def run(core: EngineCore, *requests: Request) -> None:
    """Serve requests to their ends, in blocks that always balance."""
    for request in requests:
        core.add_request(request)
    for step in range(2000):
        if not core.has_work:
            return
        core.step(float(step))
        blocks = core.scheduler.blocks
        assert sum(blocks._held) + blocks.num_free_blocks == blocks.num_blocks
        for request in core.scheduler.running:
            assert blocks._held[request.slot] >= blocks.blocks_for(request.num_computed_tokens)
    raise AssertionError("the core did not finish")


prompts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=9)


@given(
    prompts=prompts,
    num_blocks=st.integers(8, 40),
    num_slots=st.integers(1, 4),
    budget=st.integers(4, 32),
    threshold=st.none() | st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_every_request_gets_exactly_the_plain_continuation(prompts, num_blocks, **options):
    core = make_core(num_blocks=num_blocks, **options)
    requests = [
        make_request(i, prompt, max_tokens=1 + i % 4 * 7) for i, prompt in enumerate(prompts)
    ]
    requests = [
        r for r in requests if core.scheduler.blocks.blocks_for(r.max_num_tokens) <= num_blocks
    ]
    run(core, *requests)
    for request in requests:
        assert request.output_token_ids.tolist() == expected_of(request)
        assert request.finish_reason == "length"
    assert core.scheduler.blocks.num_used_blocks == 0
    assert (
        sorted(core.executor.released)
        == sorted(core.controller.forgotten)
        == [r.request_id for r in requests]
    )


def test_preemption_happens_and_changes_nothing():
    core = make_core(num_blocks=8, num_slots=4, budget=32)
    requests = [make_request(i, [i, 1, 2, 3, 4], max_tokens=20) for i in range(4)]
    run(core, *requests)
    assert sum(r.num_preemptions for r in requests) > 0
    for request in requests:
        assert request.output_token_ids.tolist() == expected_of(request)


def test_the_first_step_is_when_a_request_leaves_the_queue():
    core = make_core(num_slots=2)
    requests = [
        make_request(number, prompt, max_tokens=2)
        for number, prompt in enumerate(([1], [2] * 20, [3]))
    ]
    run(core, *requests)
    first, long, third = (request.first_step for request in requests)
    assert (first, long) == (0.0, 0.0) and third > long, (
        "of a prompt in chunks, and of one that found no slot"
    )


def test_stop_token_inside_a_draft_ends_the_request_there():
    prompt = [1, 2, 3]
    expected = continuation(prompt, 10)
    stop = expected[4]
    core = make_core()
    core.executor.accuracy = 1.0
    request = make_request(0, prompt, stop=(stop,))
    run(core, request)
    assert request.output_token_ids.tolist() == expected[: expected.index(stop) + 1]
    assert request.finish_reason == "stop"
    for outcome in core.controller.outcomes:
        assert (outcome.tested <= outcome.verified).all()
        assert (outcome.accepted <= outcome.tested).all()


@given(st.integers(0, 500))
def test_abort_at_any_moment_frees_everything_and_disturbs_no_other(seed):
    random = np.random.default_rng(seed)
    core = make_core(num_blocks=16, num_slots=3, seed=seed)
    requests = [
        make_request(i, random.integers(0, 3, random.integers(1, 20)).tolist(), 12)
        for i in range(6)
    ]
    for request in requests:
        core.add_request(request)
    aborted = set()
    while core.has_work:
        core.step(0.0)
        if random.random() < 0.2:
            victim = int(random.integers(6))
            if not requests[victim].finished:
                aborted.add(victim)
            core.abort(victim)
    assert core.scheduler.blocks.num_used_blocks == 0
    for request in requests:
        expected = expected_of(request)
        if request.request_id in aborted:
            assert request.output_token_ids.tolist() == expected[: request.num_output_tokens]
        else:
            assert request.output_token_ids.tolist() == expected


@given(st.integers(0, 500))
def test_after_a_failed_step_everything_is_computed_anew(seed):
    """Whatever raises, wherever the step was: no text is believed to lie in a slot that it never
    reached."""
    random = np.random.default_rng(seed)
    core = make_core(num_blocks=24, num_slots=3, seed=seed)
    fails_to_learn = np.zeros(1, dtype=bool)

    def learn(plan, outcome):
        if fails_to_learn.all():
            fails_to_learn[:] = False
            raise OSError("learning failed")

    core.controller.learn = learn
    prompt = list(range(12))
    requests = [
        make_request(i, prompt[: random.integers(8, 13)] + [i] * random.integers(1, 6), 12)
        for i in range(8)
    ]
    waiting, aborted = list(requests), set()
    while core.has_work or waiting:
        if waiting and random.random() < 0.3:
            core.add_request(waiting.pop())
        failing = random.choice(
            ["begin_step", "draft", "verify", "learn", None], p=[0.04, 0.04, 0.04, 0.08, 0.8]
        )
        core.executor.failing, fails_to_learn[:] = failing, failing == "learn"
        try:
            core.step(0.0)
        except OSError:
            check_nothing_is_held(core)
            if random.random() < 0.2:  # as a server does
                aborted |= {r.request_id for r in core.scheduler.waiting}
                for request in requests:
                    core.abort(request.request_id)
    check_nothing_is_held(core, cached=True)
    assert sorted(core.executor.released) == sorted(core.controller.forgotten) == list(range(8))
    for request in requests:
        expected = expected_of(request)
        num_tokens = request.num_output_tokens if request.request_id in aborted else 12
        assert request.output_token_ids.tolist() == expected[:num_tokens]


def check_nothing_is_held(core: EngineCore, cached: bool = False) -> None:
    blocks = core.scheduler.blocks
    assert not core.scheduler.running and blocks.num_used_blocks == 0
    if not cached:
        assert blocks.num_free_blocks == blocks.num_blocks


def test_after_a_failed_step_requests_come_back_in_their_order():
    core = make_core(num_slots=2, budget=16)
    requests = [make_request(i, [i] * 5) for i in range(4)]
    for request in requests:
        core.add_request(request)
    core.step(0.0)
    core.executor.failing = "verify"
    with pytest.raises(OSError, match="verify failed"):
        core.step(1.0)
    assert [r.request_id for r in core.scheduler.waiting] == [0, 1, 2, 3]
    run(core)
    assert all(r.output_token_ids.tolist() == expected_of(r) for r in requests)


@pytest.mark.parametrize("num_good", [0, 1, 4])
def test_a_request_without_a_prediction_ends_alone_and_nothing_of_it_is_cached(num_good):
    prompt = list(range(9))
    core = make_core(num_blocks=60, budget=16)
    requests = [make_request(i, prompt) for i in range(3)]
    core.executor.bad[1] = len(prompt) + num_good
    run(core, *requests)
    expected = continuation(prompt, 10)
    assert [r.output_token_ids.tolist() for r in requests] == [
        expected,
        expected[:num_good],
        expected,
    ]
    assert [(r.finish_reason, r.error) for r in requests] == [
        ("length", None),
        ("error", "no prediction"),
        ("length", None),
    ]
    assert sorted(core.executor.released) == sorted(core.controller.forgotten) == [0, 1, 2]
    alone = make_core()
    alone.executor.bad[0] = len(prompt) + num_good
    run(alone, make_request(0, prompt))
    assert alone.scheduler.blocks.find_cached_prefix(np.array(prompt, dtype=np.int32)) is None
    emitted = sum(f.num_emitted for f in alone.controller.outcomes)
    assert emitted == num_good
    alone.step(0.0)  # nothing to run: memory operations would not be carried out
    assert isinstance(alone.scheduler.blocks.take_memory_ops()[0], Wipe)


def test_a_stop_token_before_the_bad_place_ends_the_request_as_ever():
    prompt = [1, 2, 3]
    expected = continuation(prompt, 10)
    core = make_core()
    core.executor.bad[0] = len(prompt) + 5
    request = make_request(0, prompt, stop=(expected[3],))
    run(core, request)
    assert (request.finish_reason, request.error) == ("stop", None)


@pytest.mark.parametrize(("accuracy", "match"), [(1.0, 1), (-1.0, 0)])
def test_free_tests_are_reported_for_the_first_unverified_draft_token(accuracy, match):
    core = make_core()
    core.executor.accuracy = accuracy
    core.controller.cut = lambda plan, drafted: np.zeros_like(drafted.lengths)
    run(core, make_request(0, [1, 2, 3]))
    free = [f.free_tests[0] for f in core.controller.outcomes]
    tested, matched = (
        np.concatenate([getattr(f, name) for f in free]) for name in ("tested", "matched")
    )
    found = np.concatenate([f.view.draft_lengths[0] for f in core.controller.outcomes])
    assert (found > 0).any() and (tested[found > 0] == 1).all()
    assert (matched[found > 0] == match).mean() > 0.9, "a wrong guess is right by chance once in 50"


def test_a_request_that_can_never_run_is_refused():
    core = make_core(num_blocks=4, block_size=4)
    with pytest.raises(
        ValueError, match=r"prompt \(3 tokens\) and max_tokens \(62\) exceed the context of 64"
    ):
        core.add_request(make_request(0, [1, 2, 3], max_tokens=62))
    with pytest.raises(ValueError, match="need more KV memory than there is"):
        core.add_request(make_request(0, [1, 2, 3], max_tokens=30))
    assert not core.has_work


def test_prompts_whose_log_probabilities_are_wanted_share_the_rows_of_logits(monkeypatch):
    core = make_core(num_blocks=300, num_slots=8, budget=512)
    core.scheduler.max_model_len = 256
    seen, schedule = [], core.scheduler.schedule
    monkeypatch.setattr(core.scheduler, "schedule", lambda: seen.append(schedule()) or seen[-1])
    prompt = list(range(40)) * 3
    wanted = [
        Request(i, prompt, SamplingParams(max_tokens=2, prompt_logprobs=1), seed=0)
        for i in range(7)
    ]
    plain = make_request(7, prompt[::-1], max_tokens=2)
    run(core, *wanted, plain)
    for batch in seen:
        chunks = zip(batch.prefill, batch.num_prefill_tokens, strict=True)
        assert sum(size for request, size in chunks if request is not plain) <= SCORED_CHUNK + len(
            wanted
        )
    assert dict(zip(seen[0].prefill, seen[0].num_prefill_tokens, strict=True))[plain] == len(prompt)
    assert all(request.output_token_ids.tolist() == expected_of(request) for request in wanted)
