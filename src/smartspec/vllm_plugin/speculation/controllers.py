"""Controllers for a scheduler, and the log of their decisions, for `smartspec log replay`."""

import logging
from collections.abc import Callable
from pathlib import Path

from smartspec.control import Controller, DrafterSpec, LatencyModel, LogHeader, SafeController
from smartspec.core.decision_log import DecisionLog
from smartspec.core.policy_names import parse_policy
from smartspec.observation.card import Card
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")

LOG_SECONDS = 0.5  # until a decision is on disk


def controller_maker(
    config,
    settings: Settings,
    max_draft_tokens: int,
    drafters: tuple[DrafterSpec, ...],
    engine_index: int,
    files: FileThread,
) -> Callable[[LatencyModel], SafeController]:
    """Return a function that makes the controller of a cost model. Errors of the policy or the log
    are raised now."""
    parse_policy(settings.policy, max_draft_tokens)
    path = settings.decision_log
    if path is not None and engine_index:
        path = path.with_name(f"{path.stem}-{engine_index}{path.suffix}")
    log = None if path is None else _open_log(path, files)

    def make_controller(latency: LatencyModel) -> SafeController:
        policy = parse_policy(settings.policy, max_draft_tokens)
        controller = Controller(
            policy, max_draft_tokens, latency, drafters=drafters, name=settings.policy
        )
        if log is not None:
            model = str(config.model_config.model)
            log.begin(
                LogHeader(model, settings.policy, max_draft_tokens, drafters, latency.to_dict())
            )
            controller.on_record = log.add
        return SafeController(controller, logger.warning)

    return make_controller


def _open_log(path: Path, files: FileThread) -> DecisionLog:
    """Return a log whose records are on disk within LOG_SECONDS, even if vLLM is killed. ValueError
    where that cannot be made."""
    try:
        return files.call(
            lambda: DecisionLog(path, lambda flush: files.post(path, flush, LOG_SECONDS))
        )
    except TimeoutError as error:
        raise ValueError(
            f"cannot write decision log {path} ({error}): choose another file"
        ) from error


def add_acceptance(
    card: Card, make_controller: Callable[[LatencyModel], SafeController]
) -> Callable[[LatencyModel], SafeController]:
    """Return a function that makes the same controller. It expects the card's acceptance of the
    first drafter until it knows better."""

    def make(latency: LatencyModel) -> SafeController:
        safe = make_controller(latency)
        safe.controller.expect_acceptance(0, card.acceptance, card.tested)
        return safe

    return make
