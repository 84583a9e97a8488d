"""The builder of a scheduler's speculation: drafters, cost model, controller, decision log,
metrics."""

import logging
import os
from dataclasses import replace

import vllm
from vllm.platforms import current_platform

from smartspec.control import DrafterSpec
from smartspec.vllm_plugin.compatibility import (
    NO_DRAFTS,
    has_fixed_drafts,
    has_scheduler_drafts,
    is_adaptive,
    slowness,
)
from smartspec.vllm_plugin.costs.sources import CostFile, card_latency, load_latency, read_card
from smartspec.vllm_plugin.costs.steps import StepCosts
from smartspec.vllm_plugin.file_thread import FileThread
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
from smartspec.vllm_plugin.speculation.drafts import OwnDrafters, make_drafters
from smartspec.vllm_plugin.speculation.followed import COPYING, LEAST_FOLLOWED
from smartspec.vllm_plugin.speculation.learner import KEPT_PASSES, Learner
from smartspec.vllm_plugin.speculation.speculation import Speculation
from smartspec.vllm_plugin.step.adaptive import token_sizes
from smartspec.vllm_plugin.step.metrics import Metrics, metrics_path

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


def make_speculation(scheduler, settings: Settings, files: FileThread) -> Speculation:
    """Return the speculation of a scheduler. ValueError on a wrong setting. Where the cache folder
    cannot be written, nothing is kept there."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    method = config.speculative_config.method
    tiers = captured_lengths(config)
    settings = replace(settings, policy=policy_name(settings.policy, tiers))
    matches = LEAST_FOLLOWED if method in COPYING else (0,)
    # A decision saves only verification where drafts have a fixed length, as with model-free
    # drafts.
    has_passes = method not in MODEL_FREE and not has_fixed_drafts(config)
    drafter = DrafterSpec(method, has_passes, matches, kept_passes=KEPT_PASSES * has_passes)
    own = _own_drafters(scheduler, settings)
    drafters = (drafter,) if own is None else own.specs
    if advice := slowness(method, current_platform.is_cpu(), os.environ):
        logger.warning(advice)
    key = setup_key(config, vllm.__version__, device_name(), tiers)
    costs = CostFile(settings.cache, key, is_writable=engine_index == 0)
    card = read_card(settings.card, describe_setup(scheduler), files)
    source, latency = str(costs.path), load_latency(costs, drafters, files)
    if latency is None:
        source, latency = str(settings.card), card_latency(card, drafters)
    logger.info(
        "SmartSpec decides draft lengths: policy %s, %s, at most %d tokens, step times from %s",
        settings.policy,
        f"drafts by {', '.join(spec.name for spec in drafters)}",
        scheduler.num_spec_tokens,
        "the first steps" if latency is None else source,
    )
    if latency is None and not settings.has_cost_model:
        latency = StepCosts(drafter.has_passes).fit()
    metrics = Metrics(
        metrics_path(settings.cache, config.instance_id, engine_index),
        engine_index,
        settings.metrics_seconds,
        files,
    )
    make_controller = controller_maker(
        config, settings, scheduler.num_spec_tokens, drafters, engine_index, files
    )
    if card is not None:
        make_controller = add_acceptance(card, make_controller)
    learner = Learner(
        drafters[0],
        make_controller,
        latency,
        on_steps=metrics.observe,
        on_costs=lambda latency: costs.store_soon(latency, files),
        has_late_drafts=lambda: scheduler.use_v2_model_runner,
    )
    sizes = (
        token_sizes(config)
        if is_adaptive(config) and settings.verification == "smartspec"
        else None
    )
    return Speculation(
        scheduler,
        drafters[0],
        own,
        learner,
        tiers=tiers,
        is_adaptive=is_adaptive(config),
        cost_sizes=sizes,
    )


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
