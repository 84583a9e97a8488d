"""One simulated run: what is served, on what, by which policy; and how to build and run it."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from smartspec.control.baselines.oracle import Oracle
from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import Estimates
from smartspec.control.records import BatchView, DrafterSpec
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.scheduler import Scheduler
from smartspec.sim.acceptance_truth import AcceptanceTruth
from smartspec.sim.class_spec import parse_classes
from smartspec.sim.executor import LOOKUP, MODEL, SimExecutor
from smartspec.sim.fleet import ROUTERS, Fleet, Replica, Run
from smartspec.sim.hardware import GRAPH_SIZES, kv_token_capacity, roofline
from smartspec.sim.recorded_log import RecordedLog
from smartspec.sim.recorded_truth import RecordedTruth, Recording, read_recordings
from smartspec.sim.setting_limits import check_limits
from smartspec.sim.static_load import Phase, StaticLoad, StaticLog
from smartspec.sim.time_truth import Noise, TimeTruth
from smartspec.sim.traffic import Traffic, default_count, poisson_traffic, random_lengths, trace_traffic
from smartspec.workload.arrivals import check_rate, read_trace
from smartspec.workload.records import SpeculationCounters
from smartspec.workload.summary import Summary, summarize, summarize_speculation

BLOCK_SIZE = 16
MODELS = {"8b": "llama-3.1-8b", "70b": "llama-3.1-70b"}
DRAFT_MODELS = {"8b": "eagle-llama-3.1-8b", "70b": "eagle-llama-3.1-70b"}


@dataclass(frozen=True)
class Scenario:
    """A simulated run. Exactly one of rate, trace and batch says how requests come.

    policy: as in policies.names, or oracle. hardware: an accelerator (hardware.ACCELERATORS), a JSON file with measured
    curves (LatencyModel.to_dict), or a decision log, ending in .jsonl, for the profile it begins with. model: a shape
    (hardware.MODEL_SHAPES), 8b or 70b for short. drafter: model or lookup. draft_model: a shape; None takes an EAGLE
    head of the model. acceptance: see class_spec, or the path of a decision log, ending in .jsonl: request i meets what
    the log's request i mod N met. tagged: requests name their acceptance class to the engine. kv_tokens: None takes
    what the devices' memory holds. captured_graphs: passes are padded to sizes of captured graphs.

    rate: Poisson requests per second. batch: so many requests are always under way. num_requests: a trace starts over
    as often as that takes; None takes it once, without a trace 1000 requests, or all that arrive at that rate before
    seconds. seconds: only requests that arrive before.
    prompt_tokens, output_tokens: mean lengths, where no trace says more. profile: what is wrong with the start-up
    profile, see TimeTruth.profile. throttle: (second, factor), see TimeTruth.
    """

    policy: str = "goodput"
    hardware: str = "h100"
    model: str = "8b"
    tensor_parallel: int = 1
    drafter: str = "model"
    draft_model: str | None = None
    acceptance: str = "0.7"
    tagged: bool = False
    max_draft_tokens: int = 8
    max_batch: int = 256
    max_batched_tokens: int = 2048
    max_model_len: int = 131072
    kv_tokens: int | None = None
    captured_graphs: bool = False
    rate: float | None = None
    trace: str | None = None
    time_scale: float = 1.0
    batch: int | None = None
    num_requests: int | None = None
    seconds: float | None = None
    prompt_tokens: int = 512
    output_tokens: int = 200
    replicas: int = 1
    router: str = "least-loaded"
    host_seconds: float = 0.001
    jitter: float = 0.02
    profile: float | str = 1.0
    throttle: tuple[tuple[float, float], ...] = ()
    seed: int = 0

    def __post_init__(self):
        sources = {"rate": self.rate, "trace": self.trace, "batch": self.batch}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of rate, trace and batch, got {' and '.join(given) or 'none'}")
        if self.seconds is not None and self.batch is not None:
            raise ValueError("seconds cuts arrivals, and a batch has none: give num_requests")
        if self.drafter not in ("model", "lookup"):
            raise ValueError(f"unknown drafter {self.drafter!r}: use model or lookup")
        if self.router not in ROUTERS:
            raise ValueError(f"unknown router {self.router!r}: use one of {', '.join(ROUTERS)}")
        if self.draft_model is not None and not self.has_model:
            raise ValueError(f"draft_model {self.draft_model} is not used by drafter lookup: leave it out")
        if self.time_scale != 1 and self.trace is None:
            raise ValueError(f"time_scale {self.time_scale:g} is for a trace, and there is none: leave it out")
        if self.rate is not None:
            check_rate(self.rate)
        check_limits(vars(self))

    @property
    def has_model(self) -> bool:
        return self.drafter == "model"

    @property
    def drafter_spec(self) -> DrafterSpec:
        return MODEL if self.has_model else LOOKUP

    @property
    def is_measured(self) -> bool:
        """Whether hardware is a file of measured curves."""
        return self.hardware.endswith((".json", ".jsonl"))


@dataclass(frozen=True)
class Outcome:
    """A run and its figures. wall_seconds: what the simulation itself took."""

    scenario: Scenario
    run: Run
    summary: Summary
    wall_seconds: float

    @property
    def settings(self) -> dict:
        return asdict(self.scenario)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C cut the run short: of requests that came together the shorter ones have ended."""
        return self.summary.num_unfinished > 0


def simulate(scenario: Scenario, on_finished: Callable[[int], None] = lambda num_finished: None) -> Outcome:
    """Run it to its end, or until Ctrl-C: then summary.num_unfinished tells how many requests are missing."""
    traffic = make_traffic(scenario)
    fleet, run = make_fleet(scenario), Run()
    began = perf_counter()
    with suppress(KeyboardInterrupt):  # a person's wish to see what there is so far
        fleet.serve(traffic, run, on_finished)
    wall_seconds = perf_counter() - began
    speculation = summarize_speculation(SpeculationCounters(0, 0, 0, 0), run.totals.counters)
    num_unfinished = len(traffic) - len(run.records)
    summary = summarize(run.records, num_unfinished=num_unfinished, speculation=speculation)
    return Outcome(scenario, run, summary, wall_seconds)


def simulate_static(scenario: Scenario, phases: list[Phase], *, with_best: bool = True) -> StaticLog:
    """The scenario's controller and truth in steady state, see static_load; its traffic is left aside."""
    time = make_time_truth(scenario)
    load = StaticLoad(time, make_acceptance_truth(scenario), drafter=scenario.drafter_spec, seed=scenario.seed)
    return load.run(make_controller(scenario, time, load.true_estimates), phases, with_best=with_best)


def make_traffic(scenario: Scenario) -> Traffic:
    """Requests of the scenario; the same for every policy."""
    return replace(_make_traffic(scenario), tagged=scenario.tagged).before(scenario.seconds)


def _make_traffic(scenario: Scenario) -> Traffic:
    num_classes = 1 if _is_log(scenario.acceptance) else len(parse_classes(scenario.acceptance))
    trace = None
    if scenario.trace is not None:
        trace = read_trace(scenario.trace, time_scale=scenario.time_scale)
    count = scenario.num_requests or (default_count(scenario.rate, scenario.seconds) if trace is None else len(trace))
    class_ids = np.random.default_rng([scenario.seed, 0]).integers(0, num_classes, size=count)
    if trace is not None:
        return trace_traffic(trace, class_ids, count)
    prompts = random_lengths(scenario.prompt_tokens, count, scenario.seed, 2)
    outputs = random_lengths(scenario.output_tokens, count, scenario.seed, 3)
    if scenario.batch is not None:
        return Traffic(prompts, outputs, class_ids, concurrency=scenario.batch)
    return poisson_traffic(scenario.rate, prompts, outputs, class_ids, scenario.seed)


def make_fleet(scenario: Scenario) -> Fleet:
    """Replicas that share truth, and nothing else."""
    time, acceptance = make_time_truth(scenario), make_acceptance_truth(scenario)
    num_blocks = _kv_tokens(scenario) // BLOCK_SIZE
    replicas = [_make_replica(scenario, time, acceptance, num_blocks, index) for index in range(scenario.replicas)]
    return Fleet(replicas, ROUTERS[scenario.router])


def make_time_truth(scenario: Scenario) -> TimeTruth:
    """True times of the named hardware, or those of measured curves."""
    if scenario.is_measured:
        measured = _read_curves(scenario.hardware)
        target, draft = measured.target, next(filter(None, measured.drafts), None)
    else:
        graph_sizes = GRAPH_SIZES if scenario.captured_graphs else ()
        target = roofline(scenario.hardware, _target_name(scenario), scenario.tensor_parallel, graph_sizes)
        draft = roofline(scenario.hardware, _draft_name(scenario), scenario.tensor_parallel, graph_sizes)
    if scenario.has_model and draft is None:
        raise ValueError(f"{scenario.hardware} has no curve of a draft model: use drafter lookup")
    noise = Noise(jitter=scenario.jitter)
    drafts = (draft,) if scenario.has_model else ()
    return TimeTruth(target, drafts, scenario.host_seconds, noise, throttle=scenario.throttle)


def make_acceptance_truth(scenario: Scenario) -> AcceptanceTruth:
    """True acceptance of the scenario's drafter; the same for every policy."""
    if _is_log(scenario.acceptance):
        recordings = _read_recordings(Path(scenario.acceptance))
        return RecordedTruth(recordings, scenario.max_draft_tokens, seed=scenario.seed)
    return AcceptanceTruth(parse_classes(scenario.acceptance), scenario.max_draft_tokens, seed=scenario.seed)


def make_controller(
    scenario: Scenario, time: TimeTruth, true_estimates: Callable[[BatchView], Estimates]
) -> Controller:
    """The real controller with a start-up profile; the oracle alone is told the truth."""
    is_oracle = scenario.policy == "oracle"
    controller = Controller(
        "off" if is_oracle else scenario.policy,
        scenario.max_draft_tokens,
        time.profile(scenario.profile, scenario.seed),
        drafters=(scenario.drafter_spec,),
    )
    if is_oracle:
        controller.policy = Oracle(true_estimates)
    return controller


def _make_replica(
    scenario: Scenario, time: TimeTruth, acceptance: AcceptanceTruth, num_blocks: int, index: int
) -> Replica:
    executor = SimExecutor(
        time, acceptance, drafter=scenario.drafter_spec, num_slots=scenario.max_batch, seed=scenario.seed + index
    )
    scheduler = Scheduler(
        BlockManager(num_blocks, BLOCK_SIZE, scenario.max_batch),
        max_batched_tokens=scenario.max_batched_tokens,
        max_model_len=scenario.max_model_len,
        max_draft_tokens=scenario.max_draft_tokens,
    )
    controller = make_controller(scenario, time, executor.true_estimates)
    return Replica(EngineCore(scheduler, executor, executor.overheard(controller)), executor)


def _kv_tokens(scenario: Scenario) -> int:
    if scenario.kv_tokens is not None:
        return scenario.kv_tokens
    if scenario.is_measured:
        raise ValueError("measured curves say nothing about memory: give kv_tokens")
    target = roofline(scenario.hardware, _target_name(scenario), scenario.tensor_parallel)
    draft = roofline(scenario.hardware, _draft_name(scenario)).model if scenario.has_model else None
    return kv_token_capacity(target, draft)


def _target_name(scenario: Scenario) -> str:
    return MODELS.get(scenario.model, scenario.model)


def _draft_name(scenario: Scenario) -> str:
    if scenario.draft_model is not None:
        return scenario.draft_model
    if scenario.model not in DRAFT_MODELS:
        raise ValueError(f"model {scenario.model!r} has no usual draft model: give draft_model")
    return DRAFT_MODELS[scenario.model]


def _is_log(path: str) -> bool:
    return path.endswith(".jsonl")


@functools.lru_cache(maxsize=1)  # every policy and seed of a comparison reads the same log
def _read_recordings(path: Path) -> list[Recording]:
    try:
        return read_recordings(RecordedLog(path))
    except OSError as error:
        raise ValueError(f"cannot read the decision log {path}: {error.strerror}") from error


def _read_curves(path: str) -> LatencyModel:
    try:
        if _is_log(path):
            return LatencyModel.from_dict(RecordedLog(Path(path)).header.profile)
        return LatencyModel.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"cannot read the curves {path}: {error.strerror}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
