"""A run against a server: one that is started for the report, or one that runs already."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan, run_load
from smartspec.bench.probe import find_model
from smartspec.bench.run import measure
from smartspec.report.folder import Measured, digested
from smartspec.report.loads import Prompts, plan_run
from smartspec.report.matrix import Matrix, Run, Variant
from smartspec.report.servers import StartedServer, serve_command
from smartspec.workload.records import RequestRecord

SETTLE_SECONDS = 4  # after the starts: a server that waits moves its memory to huge pages
PAUSE_SECONDS = 0.5  # between runs, in which the last server comes to rest
WARM_UP = LoadRequest("warm-up", "", "Count from one to twenty.", 16)


@dataclass(frozen=True)
class ServerOptions:
    """Options of started servers: model, and more options of `smartspec serve`. Options of all
    servers: key and timeout of requests, and whether answers go on after their end (ignore_eos)."""

    model: str | None = None
    options: tuple[str, ...] = ()
    api_key: str | None = None
    timeout_seconds: float = 120.0
    ignore_eos: bool = False


class LiveRuns:
    """Measures runs. servers: the started ones, by the name of their variant. targets: of the
    variants."""

    def __init__(
        self,
        matrix: Matrix,
        prompts: Prompts,
        servers: Mapping[str, StartedServer],
        targets: dict[str, Target],
    ):
        self._matrix, self._prompts = matrix, prompts
        self._servers, self._targets = servers, targets

    def __call__(self, run: Run) -> Measured:
        """Whatever goes wrong is the run's failure. KeyboardInterrupt on Ctrl-C: the run is then as
        if never begun."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        plan = plan_run(self._matrix, self._prompts, run)
        server = self._servers.get(run.variant)
        try:
            if server is not None and not server.is_running:
                server.start()
                self._targets[run.variant] = replace(
                    self._targets[run.variant], base_url=server.base_url
                )
        except ValueError as error:
            return Measured(run.key, started, (), failure=str(error))
        target = self._targets[run.variant]
        if target.cache_salt is not None:
            plan = replace(plan, requests=isolated(plan.requests, uuid.uuid4().hex))
        time.sleep(PAUSE_SECONDS)
        records, summary = measure(target, plan)
        if summary.num_unfinished:
            raise KeyboardInterrupt
        failure = None
        if summary.errors:
            first, *_ = summary.errors
            failure = f"{summary.num_errors} of {len(records)} requests failed: {first}"
            if server is not None and not server.is_running:
                failure = f"the server {server.name} {server.why_it_ended()}"
        counters = summary.speculation.counters if summary.speculation else None
        return Measured(run.key, started, tuple(map(digested, records)), counters, failure)


@contextmanager
def live_runs(
    matrix: Matrix, prompts: Prompts, options: ServerOptions, logs: Path, on_start=lambda text: None
) -> Iterator[LiveRuns]:
    """Servers are up while the block runs. Raises ValueError, before anything is measured, if one
    does not answer as it should."""
    servers = {
        variant.name: StartedServer(
            variant.name,
            serve_command(variant.policy, variant.drafters, options.model, options.options),
            logs / f"server-{number}.log",
        )
        for number, variant in enumerate(matrix.variants)
        if variant.base_url is None
    }
    try:
        for name, server in servers.items():  # one by one: each measures its own costs, alone
            on_start(f"starting the server {name}")
            server.start()
        targets = {}
        for variant in matrix.variants:
            url = servers[variant.name].base_url if variant.name in servers else variant.base_url
            targets[variant.name] = ready_target(variant, url, options)
        if servers:
            time.sleep(SETTLE_SECONDS)
        yield LiveRuns(matrix, prompts, servers, targets)
    finally:
        for server in servers.values():
            server.stop()


def isolated(requests: Sequence[LoadRequest], salt: str) -> list[LoadRequest]:
    """The requests with cache salts. A prompt that comes again in a run gets another one each time:
    else it would be measured how well an earlier answer to it can be copied."""
    times: Counter[str] = Counter()
    salted = []
    for request in requests:
        times[request.prompt] += 1
        salted.append(replace(request, cache_salt=f"{salt} {times[request.prompt]}"))
    return salted


def ready_target(variant: Variant, base_url: str, options: ServerOptions) -> Target:
    """The server after a short request. Raises ValueError naming the variant if that fails.

    It gets a cache_salt if it takes one: then no run finds prefixes or drafts of an earlier one,
    see isolated.
    """
    try:
        model = find_model(
            base_url, options.model if variant.base_url is not None else None, options.api_key
        )
    except ValueError as error:
        raise ValueError(f"{variant.name}: {error}") from error
    target = Target(
        base_url,
        model,
        options.api_key,
        ignore_eos=options.ignore_eos,
        timeout_seconds=options.timeout_seconds,
        cache_salt="warm-up",
    )
    if _warm_up(target) is None:
        return target
    without_salt = replace(target, cache_salt=None)
    if error := _warm_up(without_salt):
        raise ValueError(
            f"{variant.name}: the server at {base_url} does not answer a chat request: {error}"
        )
    return without_salt


def _warm_up(target: Target) -> str | None:
    """Send one short request; return what goes wrong, None if nothing does."""
    records: list[RequestRecord] = []
    asyncio.run(run_load(target, LoadPlan([WARM_UP], concurrency=1), records.append))
    return records[0].error
