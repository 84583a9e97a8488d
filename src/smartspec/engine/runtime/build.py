"""From a configuration to a running core: models, KV memory, drafters, cost model, controller."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import LogHeader
from smartspec.control.safe_controller import SafeController
from smartspec.core.blocks import BlockManager
from smartspec.core.drafter import Drafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.ngram_tree import NgramTreeDrafter
from smartspec.engine.drafting.draft_model import DraftModel
from smartspec.engine.drafting.head_drafter import HeadDrafter
from smartspec.engine.drafting.head_kinds import Head, head_drafter, head_runner, is_head, load_head
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.drafting.medusa_drafter import MedusaDrafter, MedusaRunner
from smartspec.engine.drafting.shipped_head import head_folder
from smartspec.engine.drafting.with_ngrams import WithNgrams
from smartspec.engine.models.checkpoint import claimed_positions, locate
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.config import BLOCK_SIZE, EngineConfig
from smartspec.engine.runtime.decision_log import DecisionLog
from smartspec.engine.runtime.drafters import MODEL_FREE_DRAFTERS
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.engine.runtime.kernel_report import kernel_report
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
    """A core that is ready to step, and what a host needs to talk to it. kernels: see kernel_report, of the target.
    check_profile: to be called after the first steps, see profile.note_drift. measure_again: to be called in the engine
    thread when there has been no request for a while, for a profile that could be better; its argument says whether
    somebody waits."""

    core: EngineCore
    loaded: LoadedModel
    config: EngineConfig
    max_model_len: int
    kernels: dict[str, str]
    check_profile: Callable[[], None] = lambda: None
    measure_again: Callable[[Callable[[], bool]], None] = lambda interrupted: None
    decision_log: DecisionLog | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def close(self) -> None:
        """Finish the decision log, if there is one. Call it when the last step is over."""
        if self.decision_log is not None:
            self.decision_log.close()


def build_engine(config: EngineConfig, report: Callable[[str], None] = lambda text: None) -> Engine:
    """Load and profile everything config asks for; report gets a line per thing that takes time.

    Raises ValueError or OSError naming what is wrong with the configuration or a checkpoint.
    """
    # Opened first: a path that cannot be written is said before anything takes time.
    decision_log = None if config.decision_log is None else DecisionLog(config.decision_log)
    models = load_runners(config, report)
    runners = tuple(models.drafts.values())
    limits = {"max_batch": config.max_batch, "kv_tokens": models.kv_tokens}
    latency = _by_drafter(profiled_latency(models.target, runners, **limits, report=report), models, config)
    drafters = with_ngrams(tuple(_drafter(name, models, config) for name in config.active_drafters))
    specs = tuple(drafter.spec for drafter in drafters)
    controller = Controller(config.policy, config.max_draft_tokens, latency, drafters=specs, strict=config.strict)
    if decision_log is not None:
        decision_log.begin(_log_header(controller, config))
        controller.on_record = decision_log.add
    scheduler = Scheduler(
        BlockManager(models.kv_tokens // BLOCK_SIZE, BLOCK_SIZE, config.max_batch),
        max_batched_tokens=config.max_batched_tokens,
        max_model_len=models.target.max_len,
        max_draft_tokens=config.max_draft_tokens,
    )
    executor = LiveExecutor(models.target, drafters)
    brain = controller if config.strict else SafeController(controller, logger.exception)
    core = EngineCore(scheduler, executor, brain)
    loaded = models.target.loaded
    path = cache_path(profile_key(models.target, runners, config.max_batch))

    def check_profile() -> None:
        note_drift(path, latency.drift, logger.warning)

    def measure_again(interrupted: Callable[[], bool]) -> None:
        if not could_be_better(models.target, runners, config.max_batch):
            return
        scheduler.start_over()  # cached prefixes are overwritten
        fresh = measured_again(models.target, runners, **limits, interrupted=interrupted, report=logger.warning)
        if fresh is not None:
            controller.use_latency(_by_drafter(fresh, models, config))

    length, kernels = models.target.max_len, kernel_report(loaded)
    return Engine(core, loaded, config, length, kernels, check_profile, measure_again, decision_log)


def _by_drafter(profile: LatencyModel, models: "Runners", config: EngineConfig) -> LatencyModel:
    """The profile, whose curves are those of the draft models, with a place for every drafter."""
    curves = dict(zip(models.drafts, profile.drafts, strict=True))
    return LatencyModel(profile.target, tuple(map(curves.get, config.active_drafters)))


def _drafter(name: str, models: "Runners", config: EngineConfig) -> Drafter:
    runner = models.drafts.get(name)
    if isinstance(runner, ModelRunner):
        return DraftModel(runner, config.max_batch, name)
    if runner is not None:
        return head_drafter(runner, models.target, config.max_batch, name)
    return MODEL_FREE_DRAFTERS[name](max_draft_tokens=config.max_draft_tokens)


def with_ngrams(drafters: tuple[Drafter, ...]) -> tuple[Drafter, ...]:
    """Beside the n-gram drafter the trees of heads take in its own."""
    ngrams = next((drafter for drafter in drafters if isinstance(drafter, NgramTreeDrafter)), None)
    if ngrams is None:
        return drafters
    heads = HeadDrafter | MedusaDrafter
    return tuple(WithNgrams(each, ngrams) if isinstance(each, heads) else each for each in drafters)


def _log_header(controller: Controller, config: EngineConfig) -> LogHeader:
    return LogHeader(
        model=config.model,
        policy=config.policy,
        max_draft_tokens=config.max_draft_tokens,
        drafters=controller.drafters,
        profile=controller.latency.to_dict(),
    )


@dataclass(frozen=True)
class Runners:
    """The loaded models with their KV memory, draft models and heads by name; kv_tokens: how much may be in use."""

    target: ModelRunner
    drafts: dict[str, ModelRunner | HeadRunner | MedusaRunner]
    kv_tokens: int


def load_runners(config: EngineConfig, report: Callable[[str], None] = lambda text: None) -> Runners:
    """Load the target and the draft models that config names. Raises as build_engine."""
    _check_before_loading(config)
    report(f"loading {config.model}")
    loaded = load_model(config.model, dtype=config.dtype, device=config.device, quantization=config.quantization)
    report(f"kernels: {_in_one_line(kernel_report(loaded))}")
    max_model_len = _max_model_len(config, loaded)
    folders = {name: head_folder(name, config.model) for name in config.draft_models}
    heads = {name: load_head(folder, loaded) for name, folder in folders.items() if is_head(str(folder))}
    taps = _common_taps({name: head for name, (head, _) in heads.items()})
    target = ModelRunner(loaded, num_slots=config.max_batch, max_len=max_model_len, taps=taps)
    drafts: dict[str, ModelRunner | HeadRunner | MedusaRunner] = {}
    for name in config.draft_models:
        if name in heads:
            head, embedding = heads[name]
            options = {"embedding": embedding, "is_rounded": config.quantization != "none"}
            drafts[name] = head_runner(head, target, name=name, num_slots=config.max_batch, **options)
        else:
            drafts[name] = _draft_runner(name, config, loaded, max_model_len, report)
    return Runners(target, drafts, _kv_tokens(config, max_model_len))


def _check_before_loading(config: EngineConfig) -> None:
    """What is wrong with names and lengths is said before anything takes time."""
    for name in (config.model, *config.draft_models):
        if name == config.model or not is_head(str(head_folder(name, config.model))):
            locate(name)
    claimed = None if config.max_model_len is None else claimed_positions(config.model)
    if config.max_model_len is not None and claimed is not None and config.max_model_len > claimed:
        raise ValueError(
            f"max_model_len {config.max_model_len} exceeds {claimed}, what the model was made for ({config.model!r}): "
            "lower it"
        )
    _kv_tokens(config, config.max_model_len or 1)


def _common_taps(heads: dict[str, Head]) -> tuple[int, ...]:
    """The layers of the target that heads read. Raises ValueError where they read different ones."""
    taps = {name: head.config.taps for name, head in heads.items()}
    if len(set(taps.values())) > 1:
        raise ValueError(f"heads of one engine must tap the same layers, got {taps}: leave all but one out")
    return next(iter(taps.values()), ())


def _in_one_line(kernels: dict[str, str]) -> str:
    return "; ".join(f"{name} {about}" for name, about in kernels.items())


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    if config.max_model_len is None:
        return loaded.max_model_len
    if config.max_model_len > loaded.max_model_len:
        raise ValueError(
            f"max_model_len {config.max_model_len} exceeds {loaded.max_model_len}, {loaded.max_model_len_reason} "
            f"({config.model!r}): lower it"
        )
    return config.max_model_len


def _kv_tokens(config: EngineConfig, max_model_len: int) -> int:
    """Default: 1024 tokens for each of max_batch requests, and at least one request of full length."""
    if config.kv_tokens is None:
        return max(config.max_batch * min(max_model_len, DEFAULT_TOKENS_PER_REQUEST), max_model_len)
    if config.kv_tokens < 2 * BLOCK_SIZE:
        raise ValueError(f"kv_tokens {config.kv_tokens} is too small for one request: use at least {2 * BLOCK_SIZE}")
    return config.kv_tokens


def _draft_runner(
    name: str, config: EngineConfig, target: LoadedModel, max_model_len: int, report: Callable[[str], None]
) -> ModelRunner:
    if name == config.model:
        draft = target
    else:
        report(f"loading draft model {name}")
        draft = load_model(name, dtype=config.dtype, device=config.device, quantization=config.quantization)
        report(f"kernels of {name}: {_in_one_line(kernel_report(draft))}")
    check_same_vocabulary(target, draft)
    if draft.max_model_len < max_model_len:
        raise ValueError(
            f"draft model {name!r} has {draft.max_model_len} positions, the target serves {max_model_len}: start with "
            f"--max-model-len {draft.max_model_len}"
        )
    return ModelRunner(draft, num_slots=config.max_batch, max_len=max_model_len)


def check_same_vocabulary(target: LoadedModel, draft: LoadedModel) -> None:
    """Draft tokens are compared by id, so the ids must mean the same text. Raises ValueError saying how they differ."""
    remedy = "use a draft model of the same family, or --drafter prompt-lookup"
    if target.vocab_size != draft.vocab_size:
        raise ValueError(
            f"draft model {draft.name!r} has a vocabulary of {draft.vocab_size} tokens, {target.name!r} of "
            f"{target.vocab_size}: {remedy}"
        )
    if target.tokenizer.get_vocab() != draft.tokenizer.get_vocab():
        raise ValueError(
            f"the vocabularies of {draft.name!r} and {target.name!r} map tokens to different ids: {remedy}"
        )
