"""The builder of a scheduler's speculation: drafters, cost model, controller, decision log, metrics."""

import logging
import os
from dataclasses import replace
from functools import partial

import vllm
from vllm.platforms import current_platform

from smartspec.control import DrafterSpec
from smartspec.vllm_plugin.compatibility import (
    NO_DRAFTS,
    beside_problem,
    has_fixed_drafts,
    has_scheduler_drafts,
    is_adaptive,
    slowness,
)
from smartspec.vllm_plugin.costs.sources import CostFile, card_latency, load_latency, read_card, store_latency
from smartspec.vllm_plugin.costs.steps import StepCosts
from smartspec.vllm_plugin.settings import Settings
from smartspec.vllm_plugin.setup import (
    MODEL_FREE,
    captured_lengths,
    describe_setup,
    device_name,
    policy_name,
    setup_key,
)
from smartspec.vllm_plugin.speculation.controllers import add_acceptance, controller_maker
from smartspec.vllm_plugin.speculation.drafts import COPYING, LEAST_FOLLOWED, OwnDrafters, make_drafters
from smartspec.vllm_plugin.speculation.learner import KEPT_PASSES, Learner
from smartspec.vllm_plugin.speculation.speculation import Speculation
from smartspec.vllm_plugin.step.adaptive import token_sizes
from smartspec.vllm_plugin.step.metrics import Metrics, metrics_path

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


def make_speculation(scheduler, settings: Settings) -> Speculation:
    """Return the speculation of a scheduler. ValueError on a wrong setting. Where the cache folder cannot be written,
    nothing is kept there."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    method = config.speculative_config.method
    tiers = captured_lengths(config)
    settings = replace(settings, policy=policy_name(settings.policy, tiers))
    matches = LEAST_FOLLOWED if method in COPYING else (0,)
    # A decision saves only verification where drafts have a fixed length, as with model-free drafts.
    has_passes = method not in MODEL_FREE and not has_fixed_drafts(config)
    drafter = DrafterSpec(method, has_passes, matches, kept_passes=KEPT_PASSES * has_passes)
    own = _own_drafters(scheduler, settings, has_passes, tiers)
    drafters = own.specs if own and not has_passes else (drafter, *(own.specs if own else ()))
    if advice := slowness(method, current_platform.is_cpu(), os.environ):
        logger.warning(advice)
    key = setup_key(config, vllm.__version__, device_name(), tiers)
    costs = CostFile(settings.cache, key, is_writable=engine_index == 0)
    card = read_card(settings.card, describe_setup(scheduler))
    latency = load_latency(costs, drafters) or card_latency(card, drafters)
    logger.info(
        "SmartSpec decides draft lengths: policy %s, %s, at most %d tokens, step times from %s",
        settings.policy,
        f"drafts by {', '.join(spec.name for spec in drafters)}",
        scheduler.num_spec_tokens,
        "the first steps" if latency is None else settings.card if card is not None else costs.path,
    )
    if latency is None and not settings.has_cost_model:
        latency = StepCosts(drafter.has_passes).fit()
    metrics = Metrics(
        metrics_path(settings.cache, config.instance_id, engine_index), engine_index, settings.metrics_seconds
    )
    make_controller = controller_maker(config, settings, scheduler.num_spec_tokens, drafters, engine_index)
    if card is not None:
        make_controller = add_acceptance(card, make_controller)
    learner = Learner(
        drafters[0],
        make_controller,
        latency,
        on_steps=metrics.observe,
        on_costs=partial(store_latency, costs),
        has_late_drafts=lambda: getattr(scheduler, "use_v2_model_runner", False),
    )
    sizes = token_sizes(config) if is_adaptive(config) and settings.verification == "smartspec" else None
    return Speculation(
        scheduler, drafters[0], own, learner, tiers=tiers, is_adaptive=is_adaptive(config), cost_sizes=sizes
    )


def _own_drafters(scheduler, settings: Settings, has_passes: bool, tiers: tuple[int, ...] | None) -> OwnDrafters | None:
    """Return the drafters in the scheduler, in the place of vLLM's drafter or beside it, None for none. ValueError
    where the settings name some that cannot draft."""
    config = scheduler.vllm_config
    if has_scheduler_drafts(config):
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
