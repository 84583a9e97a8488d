"""A scenario built and run: the real controller, scheduler and step loop, and an executor that
computes."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from smartspec.control import Controller, DrafterSpec, Estimates, LatencyModel, Policy
from smartspec.control.fixed import Off
from smartspec.control.goodput.policy import Goodput
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.lab_tables import WHERE, lab_table
from smartspec.core.policy_names import TOLD, parse_policy
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.drafter_names import model_free_drafter
from smartspec.observation.card import KIND as CARD
from smartspec.observation.card import Card
from smartspec.sim.executor import SimExecutor
from smartspec.sim.perfect_estimates import PerfectEstimates
from smartspec.sim.perfect_outcomes import PerfectOutcomes
from smartspec.sim.scenario import Scenario, is_log
from smartspec.sim.static_load import Phase, StaticLoad, StaticLog
from smartspec.sim.virtual_engine import NOTHING, Run, VirtualEngine
from smartspec.sim.world.acceptance import AcceptanceClass, GroundTruthAcceptance
from smartspec.sim.world.card_acceptance import acceptance_class_of
from smartspec.sim.world.class_spec import parse_classes
from smartspec.sim.world.hardware import GRAPH_SIZES, Roofline, kv_token_capacity, roofline
from smartspec.sim.world.hosts import on_host
from smartspec.sim.world.recorded_acceptance import RecordedGroundTruth, Recording, read_recordings
from smartspec.sim.world.step_time import GroundTruthTime
from smartspec.sim.world.texts import TextAcceptance, read_texts
from smartspec.sim.world.traffic import Traffic, default_count, random_lengths, repeated
from smartspec.workload.arrivals import poisson_arrivals, read_trace
from smartspec.workload.summary import Summary, summarize, summarize_speculation

BLOCK_SIZE = 16
MODELS = {"8b": "llama-3.1-8b", "70b": "llama-3.1-70b"}
DRAFT_MODELS = {"8b": "eagle-llama-3.1-8b", "70b": "eagle-llama-3.1-70b"}


@dataclass(frozen=True)
class SimulationResult:
    """A run and its figures."""

    scenario: Scenario
    run: Run
    summary: Summary
    wall_seconds: float  # what the simulation itself took

    @property
    def settings(self) -> dict:
        return asdict(self.scenario)

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended the run early. Then shorter requests are over-represented among
        those that ended."""
        return self.summary.num_unfinished > 0


def simulate(scenario: Scenario) -> SimulationResult:
    """Run it to its end, or until Ctrl-C: then summary.num_unfinished tells how many requests are
    missing."""
    traffic, engine, run = make_traffic(scenario), make_engine(scenario), Run()
    began = perf_counter()
    with suppress(KeyboardInterrupt):  # Ctrl-C: the person wants the results so far
        engine.serve(traffic, run)
    wall_seconds = perf_counter() - began
    speculation = summarize_speculation(NOTHING, run.totals)
    num_unfinished = len(traffic) - len(run.records)
    summary = summarize(run.records, num_unfinished=num_unfinished, speculation=speculation)
    return SimulationResult(scenario, run, summary, wall_seconds)


def simulate_static(scenario: Scenario, phases: list[Phase]) -> StaticLog:
    """The scenario's controller and ground truth in steady state, see static_load; its traffic is
    not used. ValueError for parallel drafting, whose rows have a state that is not modelled
    there."""
    if scenario.is_parallel:
        raise ValueError(
            "drafting parallel is not simulated in steady state: use simulate with a batch"
        )
    load, controller = make_static_load(scenario, scenario.drafter_spec)
    return load.run(controller, phases)


def make_static_load(
    scenario: Scenario, drafter: DrafterSpec | None
) -> tuple[StaticLoad, Controller]:
    """The ground truth of a scenario in steady state, and its controller."""
    time = ground_truth_time(scenario)
    load = StaticLoad(
        time,
        ground_truth_acceptance(scenario),
        drafter=drafter,
        seed=scenario.seed,
        later_child_share=scenario.later_child_share,
    )
    return load, make_controller(scenario, time, load.true_estimates, drafter)


def make_traffic(scenario: Scenario) -> Traffic:
    """Requests of the scenario; the same for every policy."""
    texts = trace = arrivals = None
    if scenario.texts is not None:
        texts = read_texts(scenario.texts)
    if scenario.trace is not None:
        trace = read_trace(scenario.trace, time_scale=scenario.time_scale)
    count = scenario.num_requests or (
        default_count(scenario.rate, scenario.seconds) if trace is None else len(trace)
    )
    if texts is not None and scenario.num_requests is None and scenario.seconds is None:
        # a drafter that learns would remember the texts of the first run
        count = min(count, len(texts))
    is_recorded = texts is not None or is_log(scenario.acceptance)
    num_classes = 1 if is_recorded else len(_classes(scenario.acceptance))
    class_ids = np.random.default_rng([scenario.seed, 0]).integers(0, num_classes, size=count)
    prompts = random_lengths(scenario.prompt_tokens, count, scenario.seed, 2)
    outputs = random_lengths(scenario.output_tokens, count, scenario.seed, 3)
    if trace is not None:
        prompts, outputs, arrivals = repeated(trace, count)
    elif scenario.rate is not None:
        rng = np.random.default_rng([scenario.seed, 1])
        arrivals = poisson_arrivals(scenario.rate, count, rng)
    if texts is not None:  # in turn
        lengths = [(len(text.prompt), len(text.output)) for text in texts]
        prompts, outputs = np.resize(lengths, (count, 2)).T
    targets = scenario.tpot_targets, scenario.ttft_target
    traffic = Traffic(
        prompts, outputs, class_ids, arrivals, scenario.batch, scenario.tagged, *targets
    )
    return traffic.before(scenario.seconds)


def ground_truth_time(scenario: Scenario) -> GroundTruthTime:
    """True times of the named hardware, or those of measured curves."""
    if scenario.is_measured:
        measured = _read_curves(scenario.hardware)
        target, draft = measured.target, next(filter(None, measured.drafts), None)
    else:
        graph_sizes = GRAPH_SIZES if scenario.captured_graphs else ()
        target = _target_roofline(scenario, graph_sizes)
        draft = _draft_roofline(scenario, graph_sizes) if scenario.has_model else None
    if scenario.has_model and draft is None:
        raise ValueError(f"{scenario.hardware} has no curve of a draft model: use drafter lookup")
    return GroundTruthTime(
        target,
        (draft,) if scenario.has_model else (),
        scenario.host_seconds,
        scenario.jitter,
        scenario.throttle,
        scenario.controller_seconds,
        is_parallel=scenario.is_parallel,
        later_drafts=(_of_lab(scenario)(draft),) if scenario.is_layer_parallel else (),
    )


def ground_truth_acceptance(scenario: Scenario) -> GroundTruthAcceptance:
    """True acceptance of the scenario's drafter; the same for every policy."""
    if scenario.texts is not None:
        drafter = model_free_drafter(scenario.drafter, scenario.max_draft_tokens)
        return TextAcceptance(read_texts(scenario.texts), drafter, seed=scenario.seed)
    if is_log(scenario.acceptance):
        recordings = _read_recordings(Path(scenario.acceptance))
        return RecordedGroundTruth(recordings, scenario.max_draft_tokens, seed=scenario.seed)
    later = _of_lab(scenario).accuracy if scenario.is_layer_parallel else 1.0
    found = scenario.found_share
    classes = [replace(c, found_share=found, later=later) for c in _classes(scenario.acceptance)]
    return GroundTruthAcceptance(tuple(classes), scenario.max_draft_tokens, seed=scenario.seed)


def _classes(acceptance: str) -> tuple[AcceptanceClass, ...]:
    """The acceptance classes of a text, or of the card at a path."""
    if not acceptance.endswith(".json"):
        return parse_classes(acceptance)
    card = Card.read(Path(acceptance))
    return (acceptance_class_of(card.acceptance, card.tested),)


def make_controller(
    scenario: Scenario,
    time: GroundTruthTime,
    true_estimates: Callable[..., Estimates],
    drafter: DrafterSpec | None,
) -> Controller:
    """The real controller with a start-up profile; the policies of TOLD alone are told the ground
    truth."""
    is_told = scenario.policy in TOLD
    controller = Controller(
        Off() if is_told else _policy(scenario),
        scenario.max_draft_tokens,
        (time if drafter else replace(time, drafts=(), later_drafts=())).profile(
            scenario.profile, scenario.seed
        ),
        drafters=(drafter,) if drafter else (),
        name=scenario.policy,
    )
    if scenario.policy == "perfect-estimates":
        controller.policy = PerfectEstimates(true_estimates)
    elif is_told:
        controller.policy = PerfectOutcomes(functools.partial(true_estimates, outcomes=True))
    return controller


def _policy(scenario: Scenario) -> Policy:
    if scenario.policy == "goodput":
        return Goodput(settings=scenario.goodput)
    return parse_policy(scenario.policy, scenario.max_draft_tokens)


def make_engine(scenario: Scenario) -> VirtualEngine:
    """The engine of a scenario."""
    time = ground_truth_time(scenario)
    drafts_in_parallel = scenario.is_parallel and scenario.served_drafter is not None
    make_executor: Callable[..., SimExecutor] = SimExecutor
    if drafts_in_parallel:
        is_fixed = scenario.policy.startswith("fixed:")  # it may wait for a longer draft
        longest = (
            scenario.max_draft_tokens
            if is_fixed
            else time.num_hidden_passes(scenario.prompt_tokens)
        )
        make_executor = functools.partial(_of_lab(scenario), longest=longest)
    executor = make_executor(
        time,
        ground_truth_acceptance(scenario),
        drafter=scenario.served_drafter,
        num_slots=scenario.max_batch,
        seed=scenario.seed,
        later_child_share=scenario.later_child_share,
    )
    scheduler = Scheduler(
        BlockManager(kv_tokens(scenario) // BLOCK_SIZE, BLOCK_SIZE, scenario.max_batch),
        max_batched_tokens=scenario.max_batched_tokens,
        max_model_len=scenario.max_model_len,
        max_draft_tokens=scenario.max_draft_tokens,
    )
    controller = make_controller(scenario, time, executor.true_estimates, scenario.served_drafter)
    return VirtualEngine(EngineCore(scheduler, executor, controller), executor)


def _of_lab(scenario: Scenario) -> Any:
    """The lab's part that drafts in another way than serially. ValueError where the repository's
    lab is not found."""
    draftings = lab_table("worlds", "DRAFTINGS")
    if scenario.drafting not in draftings:
        raise ValueError(f"drafting {scenario.drafting} is in {WHERE}")
    return draftings[scenario.drafting]


def kv_tokens(scenario: Scenario) -> int:
    """Tokens of KV that the engine holds: beside the weights, and beside those of a draft model,
    whatever the policy."""
    if scenario.kv_tokens is not None:
        return scenario.kv_tokens
    if scenario.is_measured:
        raise ValueError("measured curves say nothing about memory: give kv_tokens")
    target = _target_roofline(scenario)
    if scenario.is_parallel:  # each has devices of its own
        return min(kv_token_capacity(target), kv_token_capacity(_draft_roofline(scenario)))
    return kv_token_capacity(target, _draft_roofline(scenario) if scenario.has_model else None)


def _target_roofline(scenario: Scenario, graph_sizes: tuple[int, ...] = ()) -> Roofline:
    name = MODELS.get(scenario.model, scenario.model)
    return on_host(
        scenario.host, roofline(scenario.hardware, name, scenario.tensor_parallel, graph_sizes)
    )


def _draft_roofline(scenario: Scenario, graph_sizes: tuple[int, ...] = ()) -> Roofline:
    name = scenario.draft_model
    if name is None:
        name = DRAFT_MODELS.get(scenario.model)
    if name is None:
        raise ValueError(f"model {scenario.model!r} has no usual draft model: give draft_model")
    return roofline(scenario.hardware, name, scenario.draft_devices, graph_sizes)


@functools.lru_cache(maxsize=1)  # every policy and seed of a comparison reads the same file
def _read_recordings(path: Path) -> list[Recording]:
    try:
        return read_recordings(RecordedLog(path))
    except OSError as error:
        raise ValueError(f"cannot read the decision log {path}: {error.strerror}") from error


def _read_curves(path: str) -> LatencyModel:
    try:
        if is_log(path):
            return LatencyModel.from_dict(RecordedLog(Path(path)).header.profile)
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        is_card = isinstance(data, dict) and data.get("kind") == CARD
        return LatencyModel.from_dict(Card.read(Path(path)).latency if is_card else data)
    except OSError as error:
        raise ValueError(f"cannot read the curves {path}: {error.strerror}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
