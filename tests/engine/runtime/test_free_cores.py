"""Passes run on the cores that other processes leave free, with the same bits as on all of them."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from default_model import load_once

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime import free_cores
from smartspec.engine.runtime.free_cores import MAX_WINDOW, MIN_WINDOW, FreeCores, Usage, usage


@pytest.fixture
def four_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)


class Machine:
    """Of so many cores; others: cores' worth of time that other processes use."""

    def __init__(self, num_cores: int = 4):
        self.now, self.used, self.num_reads = 100.0, 7.0, 0
        self.free = FreeCores(self._read, num_cores)

    def _read(self) -> Usage:
        self.num_reads += 1
        return Usage(self.now, self.used)

    def steps(self, others: float, seconds: float = 1.0, step: float = 0.01) -> int:
        """Threads after a while of steps."""
        for _ in range(round(seconds / step)):
            self.free.adapt(self.now)
            self.now += step
            self.used += step * others
        assert torch.get_num_threads() == self.free.num_threads
        return self.free.num_threads


@pytest.mark.parametrize(
    ("others", "threads"), [(0.0, 4), (0.4, 4), (0.67, 3), (1.0, 3), (2.0, 2), (4.0, 1), (9.0, 1)]
)
def test_threads_are_what_others_leave(four_threads, others, threads):
    assert Machine().steps(others) == threads


def test_cores_that_are_given_back_are_used_again(four_threads):
    machine = Machine()
    assert [machine.steps(others) for others in (1.0, 0.4, 0.3, 2.0, 0.0)] == [3, 3, 4, 2, 4]


def test_fewer_threads_than_cores_make_room_already(four_threads):
    machine = Machine(num_cores=8)
    assert [machine.steps(others) for others in (4.0, 5.0)] == [4, 3]


def test_looks_are_rare_and_long_ago_says_nothing(four_threads):
    machine = Machine()
    machine.steps(1.0, seconds=10 * MIN_WINDOW, step=MIN_WINDOW / 100)
    assert machine.num_reads <= 11
    machine.now += MAX_WINDOW + 60.0  # nobody asked anything, and others used all cores
    machine.used += 240.0
    machine.free.adapt(machine.now)
    assert machine.free.num_threads == 3


def test_all_threads_are_used_for_a_profile(four_threads):
    machine = Machine()
    machine.steps(1.0)
    machine.free.use_all()
    assert machine.free.num_threads == torch.get_num_threads() == 4


def test_what_this_process_uses_and_a_hypervisor_takes_is_not_of_others(
    monkeypatch,
):
    def look(now: float, own: float, *unused: tuple[float, float, float]) -> Usage:
        times = [
            SimpleNamespace(idle=idle, iowait=iowait, steal=steal) for idle, iowait, steal in unused
        ]
        monkeypatch.setattr(free_cores.psutil, "cpu_times", lambda percpu: times)
        monkeypatch.setattr(free_cores.time, "monotonic", lambda: now)
        monkeypatch.setattr(free_cores.time, "process_time", lambda: own)
        return usage()

    monkeypatch.setattr(free_cores.os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
    before = look(10.0, 3.0, (5.0, 0.0, 0.0), (9.0, 9.0, 9.0), (5.0, 0.0, 0.0))
    after = look(12.0, 4.5, (5.1, 0.1, 0.3), (9.0, 9.0, 9.0), (6.0, 0.0, 0.0))
    assert after.now - before.now == 2.0
    assert after.others - before.others == pytest.approx(2 * 2.0 - 1.5 - (0.1 + 0.1 + 0.3 + 1.0))


def test_logits_have_the_same_bits_on_any_number_of_threads():
    threads = torch.get_num_threads()
    runner = ModelRunner(load_once(DEFAULT_MODEL), num_slots=2, max_len=64)
    tokens = np.arange(1000, 1040, dtype=np.int32)

    def logits(number: int) -> torch.Tensor:
        torch.set_num_threads(number)
        prompt = runner.forward([Segment(0, 0, tokens, 40), Segment(1, 0, tokens[:7], 7)])
        return torch.cat([prompt, runner.forward([Segment(0, 40, tokens[:3], 3)])])

    try:
        assert runner.loaded.fused_pass is not None
        assert torch.equal(logits(1), logits(2)) and torch.equal(logits(2), logits(3))
    finally:
        torch.set_num_threads(threads)
