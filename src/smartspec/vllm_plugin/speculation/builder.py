"""The builder of a scheduler's speculation: drafters, cost model, controller, decision log,
metrics."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vllm.platforms import current_platform

from smartspec.control import Controller, DrafterSpec, LatencyModel, LogHeader, SafeController
from smartspec.core.decision_log import DecisionLog
from smartspec.core.policy_names import parse_policy
from smartspec.observation.card import Card
from smartspec.vllm_plugin.compatibility import (
    NO_DRAFTS,
    has_fixed_drafts,
    has_scheduler_drafts,
    is_adaptive,
    slowness,
)
from smartspec.vllm_plugin.costs.sources import CostFile, card_latency, read_card
from smartspec.vllm_plugin.costs.steps import StepCosts
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.settings import Settings
from smartspec.vllm_plugin.setup import (
    MODEL_FREE,
    captured_lengths,
    describe_setup,
    policy_name,
    setup_key,
)
from smartspec.vllm_plugin.speculation.drafts import OwnDrafters, make_drafters
from smartspec.vllm_plugin.speculation.learner import KEPT_PASSES, Learner
from smartspec.vllm_plugin.speculation.speculation import Speculation
from smartspec.vllm_plugin.step.adaptive import token_sizes
from smartspec.vllm_plugin.step.metrics import make_metrics

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets
LOG_SECONDS = 0.5  # until a decision is on disk


def make_speculation(scheduler, settings: Settings, files: FileThread) -> Speculation:
    """Return the speculation of a scheduler. ValueError on a wrong setting. Where the cache folder
    cannot be written, nothing is kept there."""
    config = scheduler.vllm_config
    method, tiers = config.speculative_config.method, captured_lengths(config)
    policy = policy_name(settings.policy, tiers)
    own = _own_drafters(scheduler, settings)
    drafters = (_vllm_drafter(config),) if own is None else own.specs
    if advice := slowness(method, current_platform.is_cpu(), os.environ):
        logger.warning(advice)
    is_first = config.parallel_config.data_parallel_index == 0
    costs = CostFile(settings.cache, setup_key(config, tiers), is_writable=is_first)
    card = read_card(settings.card, describe_setup(scheduler), files)
    source, latency = str(costs.path), costs.load(drafters, files)
    if latency is None:
        source, latency = str(settings.card), card_latency(card, drafters)
    logger.info(
        "SmartSpec decides draft lengths: policy %s, drafts by %s, at most %d tokens, step times "
        "from %s",
        policy,
        ", ".join(spec.name for spec in drafters),
        scheduler.num_spec_tokens,
        "the first steps" if latency is None else source,
    )
    if latency is None and not settings.has_cost_model:
        latency = StepCosts(drafters[0].has_passes).fit()
    learner = Learner(
        drafters[0],
        controller_maker(scheduler, settings, policy, drafters, card, files),
        latency,
        on_steps=make_metrics(config, settings, files).observe,
        on_costs=lambda latency: files.post(costs.path, partial(costs.store, latency.to_dict())),
        has_late_drafts=lambda: scheduler.use_v2_model_runner,
    )
    return Speculation(
        scheduler,
        drafters[0],
        own,
        learner,
        tiers=tiers,
        cost_sizes=token_sizes(config) if is_adaptive(config) else None,
    )


def _vllm_drafter(config) -> DrafterSpec:
    """Return vLLM's drafter, as the controller names it. A decision saves only verification where
    drafts have a fixed length, as with model-free drafts."""
    method = config.speculative_config.method
    has_passes = method not in MODEL_FREE and not has_fixed_drafts(config)
    return DrafterSpec(method, has_passes, kept_passes=KEPT_PASSES * has_passes)


def _own_drafters(scheduler, settings: Settings) -> OwnDrafters | None:
    """Return the drafters in the scheduler, in the place of vLLM's, None for none. ValueError where
    the settings name some that cannot draft."""
    config = scheduler.vllm_config
    if has_scheduler_drafts(config):
        return make_drafters(config, settings, scheduler.num_spec_tokens)
    if settings.drafter is not None:
        raise ValueError(
            f"setting 'drafter' is {settings.drafter!r}, but vLLM's method {config.speculative_config.method} drafts: "  # noqa: E501
            f'ours draft with --speculative-config \'{{"model": "{NO_DRAFTS}", "num_speculative_tokens": 5}}\''  # noqa: E501
        )
    return None


def controller_maker(
    scheduler,
    settings: Settings,
    policy: str,
    drafters: tuple[DrafterSpec, ...],
    card: Card | None,
    files: FileThread,
) -> Callable[[LatencyModel], SafeController]:
    """Return a function that makes the one controller, of a cost model; it expects the acceptance
    of a card until it knows better. Errors of the policy or the decision log are raised now."""
    config, longest = scheduler.vllm_config, scheduler.num_spec_tokens
    log = _open_log(settings.decision_log, config.parallel_config.data_parallel_index, files)
    parsed = parse_policy(policy, longest)

    def make(latency: LatencyModel) -> SafeController:
        controller = Controller(parsed, longest, latency, drafters=drafters, name=policy)
        if card is not None:
            controller.acceptance.expect(0, card.acceptance, card.tested)
        if log is not None:
            model = str(config.model_config.model)
            log.begin(LogHeader(model, policy, longest, drafters, latency.to_dict()))
            controller.on_record = log.add
        return SafeController(controller, logger.warning)

    return make


def _open_log(path: Path | None, engine_index: int, files: FileThread) -> DecisionLog | None:
    """Return a log whose records are on disk within LOG_SECONDS, even if vLLM is killed. ValueError
    where that cannot be made."""
    if path is None:
        return None
    if engine_index:
        path = path.with_name(f"{path.stem}-{engine_index}{path.suffix}")
    try:
        return files.call(
            lambda: DecisionLog(path, lambda flush: files.post(path, flush, LOG_SECONDS))
        )
    except TimeoutError as error:
        raise ValueError(
            f"cannot write decision log {path} ({error}): choose another file"
        ) from error
