"""Simulated runs, one after the other or at once in processes of their own; runs that have ended
are never lost."""

import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children
from typing import TYPE_CHECKING

from smartspec.cli.progress import progress

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
        with progress() as bar:
            bar.show(text)
            outcome = simulate(scenario)
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
            with progress() as bar:
                bar.show("runs", 0, len(scenarios))
                for num_ended, future in enumerate(_as_they_end(numbers), start=1):
                    yield numbers[future], future.result()
                    bar.show("runs", num_ended, len(scenarios))
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
