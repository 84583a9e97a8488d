"""Builds the parts that decide for a scheduler: drafter, cost model, controller, decision log, metrics."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import vllm
from vllm.platforms import current_platform

from smartspec.control import Controller, DrafterSpec, LatencyModel, LogHeader, SafeController
from smartspec.vllm_plugin.adaptive import token_sizes
from smartspec.vllm_plugin.cards import expecting, latency_of, read_card
from smartspec.vllm_plugin.compatibility import (
    NO_DRAFTS,
    beside_problem,
    drafts_in_scheduler,
    is_adaptive,
    runs_in_lockstep,
    slowness,
)
from smartspec.vllm_plugin.copying import COPYING, LEAST_FOLLOWED
from smartspec.vllm_plugin.cost_file import CostFile, setup_key
from smartspec.vllm_plugin.costs import StepCosts
from smartspec.vllm_plugin.decision_log import DecisionLog
from smartspec.vllm_plugin.drafter_list import make_drafters
from smartspec.vllm_plugin.drafting import OwnDrafters
from smartspec.vllm_plugin.learning import KEPT_PASSES, Learning
from smartspec.vllm_plugin.metrics import Metrics, metrics_path
from smartspec.vllm_plugin.settings import Settings
from smartspec.vllm_plugin.setup import device_name, setup_of
from smartspec.vllm_plugin.speculation import MODEL_FREE, Speculation
from smartspec.vllm_plugin.tiers import captured_lengths, policy_name

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


def make_speculation(scheduler, settings: Settings) -> Speculation:
    """Everything around one scheduler: drafter, cost model, controller, log, metrics. ValueError on a wrong setting.
    A cache folder that cannot be written costs what is kept there."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    method = config.speculative_config.method
    tiers = captured_lengths(config)
    settings = replace(settings, policy=policy_name(settings.policy, tiers))
    matches = LEAST_FOLLOWED if method in COPYING else (0,)
    # Ranks in lockstep draft the configured length. A decision saves only verification, as with model-free drafts.
    has_passes = method not in MODEL_FREE and not runs_in_lockstep(config)
    drafter = DrafterSpec(method, has_passes, matches, kept_passes=KEPT_PASSES * has_passes)
    own = _own_drafters(scheduler, settings, has_passes, tiers)
    drafters = own.specs if own and not has_passes else (drafter, *(own.specs if own else ()))
    if advice := slowness(method, current_platform.is_cpu(), os.environ):
        logger.warning(advice)
    key = setup_key(config, vllm.__version__, device_name(), tiers)
    costs = CostFile(settings.cache, key, may_write=engine_index == 0)
    card = read_card(settings.card, setup_of(scheduler))
    latency = _load(costs, drafters) or latency_of(card, drafters)
    logger.info(
        "SmartSpec decides draft lengths: policy %s, %s, at most %d tokens, step times from %s",
        settings.policy,
        f"drafts by {', '.join(spec.name for spec in drafters)}",
        scheduler.num_spec_tokens,
        "the first steps" if latency is None else settings.card if card is not None else costs.path,
    )
    if latency is None and not settings.learns_times:
        latency = StepCosts(drafter.has_passes).fit()
    metrics = Metrics(
        metrics_path(settings.cache, config.instance_id, engine_index), engine_index, settings.metrics_seconds
    )
    make_controller = _controllers(config, settings, scheduler.num_spec_tokens, drafters, engine_index)
    if card is not None:
        make_controller = expecting(card, make_controller)
    learning = Learning(
        drafters[0],
        make_controller,
        latency,
        on_steps=metrics.observe,
        on_costs=partial(_store, costs),
        drafts_end_later=lambda: getattr(scheduler, "use_v2_model_runner", False),
    )
    sizes = token_sizes(config) if is_adaptive(config) and settings.verification == "smartspec" else None
    return Speculation(
        scheduler, drafters[0], own, learning, tiers=tiers, is_adaptive=is_adaptive(config), costs_of_sizes=sizes
    )


def _own_drafters(scheduler, settings: Settings, has_passes: bool, tiers: tuple[int, ...] | None) -> OwnDrafters | None:
    """Those that draft in the scheduler, in the place of vLLM's drafter or beside it, if any do. ValueError where they
    are named and cannot."""
    config = scheduler.vllm_config
    if drafts_in_scheduler(config):
        return make_drafters(config, settings, scheduler.num_spec_tokens)
    if settings.drafter is None:
        return None
    method = config.speculative_config.method
    if not has_passes:
        raise ValueError(
            f"setting 'drafter' is {settings.drafter!r}, but vLLM's method {method} drafts: our drafters draft with "
            f'--speculative-config \'{{"model": "{NO_DRAFTS}", "num_speculative_tokens": 5}}\', or beside a model'
        )
    if problem := beside_problem(config) or (tiers and "vLLM has captured graphs (use --enforce-eager)"):
        raise ValueError(f"setting 'drafter' is {settings.drafter!r} beside vLLM's method {method}, but {problem}")
    return make_drafters(config, settings, scheduler.num_spec_tokens)


def _controllers(
    config, settings: Settings, max_draft_tokens: int, drafters: tuple[DrafterSpec, ...], engine_index: int
) -> Callable[[LatencyModel], SafeController]:
    """Makes the controller, once there is a cost model for it. Errors of the policy or the log are raised now."""
    costs = StepCosts(drafters[0].has_passes).fit()
    if needs := Controller(settings.policy, max_draft_tokens, costs, drafters=drafters).policy.needs:
        raise ValueError(
            f"policy {settings.policy!r} needs {', '.join(needs)}, which vLLM does not tell a scheduler: use another"
        )
    path = settings.decision_log
    if path is not None and engine_index:
        path = path.with_name(f"{path.stem}-{engine_index}{path.suffix}")
    log = None if path is None else DecisionLog(path)

    def make_controller(latency: LatencyModel) -> SafeController:
        controller = Controller(settings.policy, max_draft_tokens, latency, drafters=drafters)
        if log is not None:
            model = str(config.model_config.model)
            log.begin(LogHeader(model, settings.policy, max_draft_tokens, drafters, latency.to_dict()))
            controller.on_record = log.add
        return SafeController(controller, logger.warning)

    return make_controller


def _load(costs: CostFile, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
    try:
        return costs.load(drafters)
    except (ValueError, OSError) as error:
        logger.warning("the cost model %s is unusable (%s): step times are learned anew", costs.path, error)
        return None


def _store(costs: CostFile, latency: LatencyModel) -> None:
    try:
        costs.store(latency)
    except (OSError, ValueError) as error:
        logger.warning("the cost model cannot be kept (%s): the next start learns step times anew", error)
