"""Simulated runs, one after the other or at once in processes of their own; runs that have ended
are never lost."""

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario
    from smartspec.sim.simulation import SimulationResult


def play(
    scenarios: list["Scenario"], processes: int = 1
) -> tuple[list["SimulationResult"], BaseException | None]:
    """The runs that ended, in the order of the scenarios, and what kept the others from it, None if
    nothing did.

    Ctrl-C is a KeyboardInterrupt (the last run may then be cut short, see SimulationResult), a
    worker that was killed a BrokenProcessPool.
    """
    ended, failure = {}, None
    numbered = one_by_one(scenarios) if processes == 1 else in_processes(scenarios, processes)
    try:
        for number, outcome in numbered:
            ended[number] = outcome
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    return [ended[number] for number in sorted(ended)], failure


def one_by_one(scenarios: list["Scenario"]) -> Iterator[tuple[int, "SimulationResult"]]:
    """Runs with their numbers. KeyboardInterrupt after a run that Ctrl-C has cut short."""
    from smartspec.sim.simulation import simulate

    for number, scenario in enumerate(scenarios):
        text = f"{number + 1}/{len(scenarios)} {scenario.policy}"
        with _progress(text, scenario.num_requests) as on_finished:
            outcome = simulate(scenario, on_finished)
        yield number, outcome
        if outcome.is_interrupted:
            raise KeyboardInterrupt


def in_processes(
    scenarios: list["Scenario"], processes: int
) -> Iterator[tuple[int, "SimulationResult"]]:
    """Runs with their numbers, as they end."""
    from smartspec.sim.simulation import simulate

    # At a terminal Ctrl-C goes to all processes: the workers ignore it, and this process ends them.
    deaf = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with ProcessPoolExecutor(min(processes, len(scenarios)), **deaf) as pool:
        try:
            numbers = {
                pool.submit(simulate, scenario): number for number, scenario in enumerate(scenarios)
            }
            with _progress("runs", len(scenarios)) as on_finished:
                for future in _as_they_end(numbers):
                    yield numbers[future], future.result()
                    on_finished(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            raise


def _as_they_end(futures: Iterable[Future]) -> Iterator[Future]:
    """The futures as of as_completed, but those with a result come before those that failed
    meanwhile."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from sorted(done, key=lambda future: future.exception() is not None)


@contextmanager
def _progress(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while the block runs; yields the function that moves it on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), refresh_per_second=2, transient=True
    ) as progress:
        task_id = progress.add_task(text, total=total)
        yield lambda num_finished: progress.advance(task_id, num_finished)
