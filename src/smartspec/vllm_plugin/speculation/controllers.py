"""Controllers for a scheduler, and the log of their decisions, for `smartspec log replay`: a header, then one line of
JSON for every step."""

import logging
from collections.abc import Callable
from pathlib import Path

from smartspec.control import Controller, DecisionRecord, DrafterSpec, LatencyModel, LogHeader, SafeController
from smartspec.observation.card import Card
from smartspec.vllm_plugin.costs.steps import StepCosts
from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")


class DecisionLog:
    """A new log file. Added records are on disk even if vLLM is killed. ValueError if the file exists or cannot be
    made. A failed write later ends the log with a warning; serving goes on."""

    def __init__(self, path: Path):
        try:
            self._file = path.open("x", buffering=1)
        except OSError as error:
            raise ValueError(f"decision log {path} cannot be made ({error.strerror}): choose another file") from error

    def begin(self, header: LogHeader) -> None:
        """Write the first line."""
        self._write(header.to_json)

    def add(self, record: DecisionRecord) -> None:
        """Write a record."""
        self._write(record.to_json)

    def _write(self, to_json: Callable[[], str]) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(to_json() + "\n")
        except (OSError, ValueError) as error:
            logger.warning("the decision log %s ends here: %s", self._file.name, error)
            self._file.close()


def controller_maker(
    config, settings: Settings, max_draft_tokens: int, drafters: tuple[DrafterSpec, ...], engine_index: int
) -> Callable[[LatencyModel], SafeController]:
    """Return a function that makes the controller of a cost model. Errors of the policy or the log are raised now."""
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


def add_acceptance(
    card: Card, make_controller: Callable[[LatencyModel], SafeController]
) -> Callable[[LatencyModel], SafeController]:
    """Return a function that makes the same controller. It expects the card's acceptance of the first drafter until it
    knows better."""

    def make(latency: LatencyModel) -> SafeController:
        safe = make_controller(latency)
        safe.controller.expect_acceptance(0, card.acceptance, card.tested)
        return safe

    return make
