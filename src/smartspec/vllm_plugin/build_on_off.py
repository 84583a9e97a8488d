"""Builds what switches speculation of a scheduler off and on (on_off.py)."""

import logging
from collections.abc import Callable

import vllm

from smartspec.vllm_plugin.ab_file import AbFile
from smartspec.vllm_plugin.comparing import LEAST_RATIO
from smartspec.vllm_plugin.compatibility import runs_in_lockstep
from smartspec.vllm_plugin.cost_file import setup_key
from smartspec.vllm_plugin.on_off import Act, OnOff, make_guard
from smartspec.vllm_plugin.on_off_metrics import OnOffMetrics, on_off_path
from smartspec.vllm_plugin.settings import OBSERVE, Settings
from smartspec.vllm_plugin.setup import device_name
from smartspec.vllm_plugin.speculation import MODEL_FREE
from smartspec.vllm_plugin.switch import Switch, switch_path
from smartspec.vllm_plugin.tiers import AUTOMATIC, captured_lengths

logger = logging.getLogger("vllm.smartspec")


def make_on_off(scheduler, settings: Settings, leave: Callable[[bool], None]) -> OnOff:
    """For one scheduler of vLLM. Where it only observes, an operator alone switches it off. leave: see OnOff."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    metrics = OnOffMetrics(on_off_path(settings.cache, config.instance_id, engine_index), engine_index)
    least_ratio = settings.guard if settings.policy != OBSERVE else 0.0
    if least_ratio is None:  # a length that a person chose is not overruled
        least_ratio = LEAST_RATIO if settings.policy == AUTOMATIC else 0.0
    guard = make_guard(least_ratio, metrics) if least_ratio else None
    make_windows = guard.watch if guard else None
    if settings.act:
        key = setup_key(config, vllm.__version__, device_name(), captured_lengths(config))
        file = AbFile(settings.cache, key | {"policy": settings.policy, "drafter": settings.drafter})
        make_windows = Act(file, metrics, guard).windows
    switch = Switch(switch_path(settings.cache))
    logger.info("Speculation is off while %s exists (`smartspec vllm off` and `on`, or touch and rm).", switch.path)
    return OnOff(scheduler, switch, metrics, make_windows, plain_length=_plain_length(config), leave=leave)


def _plain_length(vllm_config) -> int:
    """Draft tokens that workers make while speculation is off: none, where they honour that. Ranks in lockstep make
    what is configured, or they would wait for each other."""
    speculation = vllm_config.speculative_config
    is_honoured = getattr(vllm_config, "use_v2_model_runner", False) or speculation.method not in MODEL_FREE
    return 0 if is_honoured and not runs_in_lockstep(vllm_config) else speculation.num_speculative_tokens
