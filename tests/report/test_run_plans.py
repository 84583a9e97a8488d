"""The requests of a run: the same for all variants, others in each repetition."""

import numpy as np
from report_cases import CHAT, matrix

from smartspec.report.loads import plan_run
from smartspec.report.matrix import CHANGING, MIXED, Cell, Load, Run, Step
from smartspec.workload.prompts import Prompt

PROMPTS = {
    task: [Prompt(f"{task}-{i}", task, f"{task} {'x' * i}") for i in range(8)]
    for task in ("chat", "code", "rag")
}


def plan(cell: Cell, repetition: int = 0, variant: str = "off", **options):
    return plan_run(matrix(cells=[cell], **options), PROMPTS, Run(variant, cell, repetition))


def texts(planned) -> list[str]:
    return [request.prompt for request in planned.requests]


def test_variants_get_the_same_requests_and_repetitions_others():
    first, same, other = plan(CHAT), plan(CHAT, variant="goodput"), plan(CHAT, 1)
    assert first.concurrency == 2 and len(first.requests) == 4
    assert first.requests == same.requests
    assert not set(texts(first)) & set(texts(other))
    assert len({*texts(first), *texts(other)}) == 8
    assert len({request.prompt_id for request in first.requests}) == 4


def test_no_prompt_comes_twice_in_a_closed_loop_unless_more_are_wanted():
    many = Cell("chat", Load(concurrency=16))
    assert len(plan(many).requests) == len(set(texts(plan(many)))) == 8
    assert len(plan(many, requests=20).requests) == 20


def test_poisson_arrivals():
    planned = plan(Cell(MIXED, Load(rate=5)), seconds=40)
    assert len(planned.requests) == len(planned.arrival_seconds) == 200
    assert {request.task for request in planned.requests} == set(PROMPTS)
    again = plan(Cell(MIXED, Load(rate=5)), seconds=40)
    assert again.arrival_seconds.tolist() == planned.arrival_seconds.tolist()
    other = plan(Cell(MIXED, Load(rate=5)), 1, seconds=40)
    assert other.arrival_seconds.tolist() != planned.arrival_seconds.tolist()


def test_steps_change_rate_and_workload():
    planned = plan(Cell(CHANGING, Load(steps=(Step("chat", 1, 10), Step("code", 3, 10)))))
    assert [request.task for request in planned.requests] == ["chat"] * 10 + ["code"] * 30
    assert (planned.arrival_seconds[:10] < 10).all() and (planned.arrival_seconds[10:] >= 10).all()
    assert (np.diff(planned.arrival_seconds) >= 0).all()
