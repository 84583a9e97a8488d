"""A running core from a configuration: models, KV memory, drafters, cost model, controller."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from transformers import PreTrainedTokenizerBase

from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import LogHeader
from smartspec.control.safe_controller import SafeController
from smartspec.core.blocks import BlockManager
from smartspec.core.decision_log import DecisionLog
from smartspec.core.drafter import Drafter, ProfiledDrafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.policy_names import parse_policy
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.answer_files import AnswerFiles
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.drafter_names import reads_texts
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.engine.drafting.shipped.datastore import datastore_folder
from smartspec.engine.drafting.shipped.files import missing_files
from smartspec.engine.drafting.source import DrafterSource, PreparedDrafter
from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.models.chat_templates import choose_template
from smartspec.engine.models.checkpoint import locate
from smartspec.engine.models.end_of_turn import template_end
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.sampling_defaults import check_defaults
from smartspec.engine.runtime.config import (
    BLOCK_SIZE,
    LONG_PREFILL_TOKEN_THRESHOLD,
    EngineConfig,
)
from smartspec.engine.runtime.drafter_kinds import kind_of_drafter, may_draw, prepare_drafter
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.engine.runtime.free_cores import FreeCores
from smartspec.engine.runtime.kernel_report import kernel_report
from smartspec.engine.runtime.passes import Profiled
from smartspec.engine.runtime.profile import (
    cache_path,
    could_be_better,
    measured_again,
    note_drift,
    profile_key,
    profiled_latency,
)

logger = logging.getLogger(__name__)

DEFAULT_TOKENS_PER_REQUEST = 1024


@dataclass(frozen=True)
class Engine:
    """A core that is ready to step, and all that a host needs to talk to it."""

    core: EngineCore
    loaded: LoadedModel
    config: EngineConfig
    max_model_len: int
    kernels: dict[str, str]  # of the target, see kernel_report
    # to be called after the first steps, see profile.note_drift
    check_profile: Callable[[], None] = lambda: None
    # To be called in the engine thread when there has been no request for a while, for a profile
    # that could be better; its argument says whether a request waits.
    measure_again: Callable[[Callable[[], bool]], None] = lambda interrupted: None
    decision_log: DecisionLog | None = None
    memory: AnswerMemory = field(default_factory=AnswerMemory)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def close(self) -> None:
        """Finish what is written: the decision log, the answers. Call it when the last step is
        over."""
        self.memory.close()
        if self.decision_log is not None:
            self.decision_log.close()


def build_engine(config: EngineConfig, report: Callable[[str], None] = lambda text: None) -> Engine:
    """Load and profile everything config names; report gets a line per thing that takes time.

    Raises ValueError or OSError naming what is wrong with the configuration or a checkpoint.
    """
    # Opened first: a path that cannot be written is said before anything takes time.
    decision_log = None if config.decision_log is None else DecisionLog(config.decision_log)
    models = load_models(config, report)
    profiled = models.profiled(config.max_batch)
    latency = models.by_drafter(profiled_latency(profiled, report))
    specs = tuple(drafter.spec for drafter in models.drafters)
    controller = Controller(
        parse_policy(config.policy, config.max_draft_tokens),
        config.max_draft_tokens,
        latency,
        drafters=specs,
        strict=config.strict,
        name=config.policy,
    )
    if decision_log is not None:
        decision_log.begin(_log_header(controller, config))
        controller.on_record = decision_log.add
    scheduler = Scheduler(
        BlockManager(models.kv_tokens // BLOCK_SIZE, BLOCK_SIZE, config.max_batch),
        max_batched_tokens=config.max_batched_tokens,
        max_model_len=models.target.max_len,
        max_draft_tokens=config.max_draft_tokens,
        long_prefill_token_threshold=LONG_PREFILL_TOKEN_THRESHOLD,
    )
    # torch's own operators may round otherwise on another number of threads, our kernels do not.
    free_cores = None if models.target.loaded.fused_pass is None else FreeCores()
    executor = LiveExecutor(models.target, models.drafters, config.forced_acceptance, free_cores)
    brain = controller if config.strict else SafeController(controller, logger.exception)
    core = EngineCore(scheduler, executor, brain)
    loaded = models.target.loaded
    path = cache_path(profile_key(profiled))

    def check_profile() -> None:
        note_drift(path, latency.drift, logger.warning)

    def measure_again(interrupted: Callable[[], bool]) -> None:
        if free_cores is not None:
            free_cores.use_all()  # what a profile is for
        if not could_be_better(profiled):
            return
        scheduler.start_over()  # cached prefixes are overwritten
        fresh = measured_again(profiled, interrupted, logger.warning)
        if fresh is not None:
            controller.use_latency(models.by_drafter(fresh))

    length, kernels = models.target.max_len, kernel_report(loaded)
    return Engine(
        core,
        loaded,
        config,
        length,
        kernels,
        check_profile,
        measure_again,
        decision_log,
        models.memory,
    )


def _log_header(controller: Controller, config: EngineConfig) -> LogHeader:
    return LogHeader(
        model=config.model,
        policy=config.policy,
        max_draft_tokens=config.max_draft_tokens,
        drafters=controller.drafters,
        profile=controller.latency.to_dict(),
    )


@dataclass(frozen=True)
class Models:
    """The target with its KV memory, and the drafters."""

    target: ModelRunner
    drafters: tuple[Drafter, ...]  # in the order of their names
    kv_tokens: int  # most that may be in use
    datastore: Datastore | None  # read by drafters without a model
    memory: AnswerMemory  # the same

    def profiled(self, max_batch: int) -> Profiled:
        """Those with passes, whose times are measured."""
        drafters = [
            cast(ProfiledDrafter, drafter) for drafter in self.drafters if drafter.spec.has_passes
        ]
        return Profiled(self.target, tuple(drafters), max_batch, self.kv_tokens)

    def by_drafter(self, profile: LatencyModel) -> LatencyModel:
        """The profile, whose curves are those of the drafters with passes, with a place for every
        drafter."""
        curves = iter(profile.drafts)
        return LatencyModel(
            profile.target,
            tuple([next(curves) if d.spec.has_passes else None for d in self.drafters]),
        )


def load_models(config: EngineConfig, report: Callable[[str], None] = lambda text: None) -> Models:
    """Load the target and the drafters that config names. Raises as build_engine."""
    _check_before_loading(config)
    folder = (
        datastore_folder(config.datastore, config.model)
        if any(map(reads_texts, config.active_drafters))
        else None
    )
    datastore = None if folder is None else Datastore(folder)

    if config.active_drafters and (missing := missing_files(config.model)) is not None:
        report(missing)
    if not native.is_compiled(quantized_linear.LIBRARY):
        report("compiling kernels, about half a minute, once per machine")

    def load(name: str, what: str = "draft model ") -> LoadedModel:
        report(f"loading {what}{name}")
        # Weights of a draft model may be of another kind than the target's: there int8 is a wish.
        activations = "auto" if what and config.activations == "int8" else config.activations
        options = {
            "dtype": config.dtype,
            "device": config.device,
            "quantization": config.quantization,
        }
        loaded = load_model(name, activations=activations, **options)
        report(f"kernels{f' of {name}' if what else ''}: {_in_one_line(kernel_report(loaded))}")
        return loaded

    loaded = with_chat_template(load(config.model, what=""), config.chat_template)
    loaded = _with_sampling_defaults(loaded, config.generation_config, report)
    memory = _read_texts(config, loaded, datastore)
    limits = {"num_slots": config.max_batch, "max_len": _max_model_len(config, loaded)}
    options = {
        "max_draft_tokens": config.max_draft_tokens,
        "is_rounded": config.quantization != "none",
        "foresees": not any(may_draw(name, config.model) for name in config.active_drafters),
        "datastore": datastore,
        "memory": memory,
    }
    prepared = {
        name: prepare_drafter(DrafterSource(name, config.model, loaded, load, **limits, **options))
        for name in config.active_drafters
    }
    target = ModelRunner(loaded, **limits, taps=_common_taps(prepared))
    drafters = tuple([each.make(target) for each in prepared.values()])
    return Models(target, drafters, _kv_tokens(config, limits["max_len"]), datastore, memory)


def with_chat_template(loaded: LoadedModel, choice: str | None) -> LoadedModel:
    """The model with the template chosen, see choose_template, and ending its answers where that
    does."""
    if loaded.tokenizer is None:  # a model that is fed token ids alone
        return loaded
    choose_template(loaded.tokenizer, choice)
    end = template_end(loaded.tokenizer)
    return loaded if end is None else replace(loaded, eos_token_ids=loaded.eos_token_ids | {end})


def _with_sampling_defaults(
    loaded: LoadedModel, choice: str, report: Callable[[str], None]
) -> LoadedModel:
    defaults = loaded.sampling_defaults if choice == "auto" else {}
    check_defaults(defaults, loaded.name)
    if defaults:
        said = ", ".join(f"{name} {value:g}" for name, value in defaults.items())
        report(f"where requests leave it out, as the generation config says: {said}")
    return replace(loaded, sampling_defaults=defaults)


def _read_texts(
    config: EngineConfig, loaded: LoadedModel, datastore: Datastore | None
) -> AnswerMemory:
    """The memory of answers, as it was left. ValueError where it, or the datastore, is of another
    tokenizer."""
    is_kept = config.datastore_memory is not None and any(map(reads_texts, config.active_drafters))
    tokenizer = quick_digest(loaded.tokenizer) if datastore is not None or is_kept else ""
    if datastore is not None:
        datastore.check_for(tokenizer, loaded.vocab_size, config.model)
    if not is_kept:
        return AnswerMemory()
    return AnswerMemory(
        AnswerFiles(Path(config.datastore_memory).expanduser(), tokenizer, loaded.vocab_size)
    )


def _check_before_loading(config: EngineConfig) -> None:
    """Say what is wrong with names and lengths before anything takes time."""
    kinds = {name: kind_of_drafter(name, config.model) for name in config.active_drafters}
    for name in (config.model, *(name for name, kind in kinds.items() if kind == "model")):
        locate(name)
    _kv_tokens(config, config.max_model_len or 1)


def _common_taps(prepared: dict[str, PreparedDrafter]) -> tuple[int, ...]:
    """The layers of the target that drafters read. Raises ValueError where they read different
    ones."""
    taps = {name: drafter.taps for name, drafter in prepared.items() if drafter.taps}
    if len(set(taps.values())) > 1:
        raise ValueError(
            f"heads of one engine must tap the same layers, got {taps}: leave all but one out"
        )
    return next(iter(taps.values()), ())


def _in_one_line(kernels: dict[str, str]) -> str:
    return "; ".join(f"{name} {about}" for name, about in kernels.items())


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    if config.max_model_len is None:
        return loaded.max_model_len
    if config.max_model_len > loaded.max_model_len:
        raise ValueError(
            f"max_model_len {config.max_model_len} exceeds {loaded.max_model_len}, "
            f"{loaded.max_model_len_reason} ({config.model!r}): lower it"
        )
    return config.max_model_len


def _kv_tokens(config: EngineConfig, max_model_len: int) -> int:
    """Default: 1024 tokens for each of max_batch requests, and at least one request of full
    length."""
    if config.kv_tokens is None:
        return max(config.max_batch * min(max_model_len, DEFAULT_TOKENS_PER_REQUEST), max_model_len)
    if config.kv_tokens < 2 * BLOCK_SIZE:
        raise ValueError(
            f"kv_tokens {config.kv_tokens} is too small for one request: use at least "
            f"{2 * BLOCK_SIZE}"
        )
    return config.kv_tokens
