"""Cost models from before the start: one that was learned, in a file for each set-up, and that of a
card.

A set-up is a model with its device, parallelism, drafter and version of vLLM. Cards:
docs/observe.md.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from smartspec.control import CostCurve, DrafterSpec, LatencyModel
from smartspec.observation.card import Card
from smartspec.observation.files import write_json
from smartspec.vllm_plugin.file_thread import FileThread

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


@dataclass(frozen=True)
class CostFile:
    """The file of a learned cost model."""

    folder: Path
    key: dict  # all that times depend on, JSON-able
    is_writable: bool = True  # false in all ranks but one

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        return self.folder / "vllm" / f"{digest}.json"

    def load(self, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
        """Return the model of this set-up, None without a file. ValueError or OSError says why a
        file is unusable."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("key") != self.key:
            raise ValueError("it is of another set-up")
        latency = LatencyModel.from_dict(data.get("cost_model"))
        latency.use_drafters(drafters)
        return latency

    def store(self, latency: LatencyModel) -> None:
        """Write it whole or not at all; OSError where that is not possible, ValueError where times
        are not finite. Nothing happens unless is_writable."""
        self._store(latency.to_dict())

    def store_soon(self, latency: LatencyModel, files: FileThread) -> None:
        """Write it in the thread of files. Where that is not possible, there is a warning."""
        files.post(self.path, partial(self._store_or_warn, latency.to_dict()))

    def _store(self, cost_model: dict) -> None:
        if self.is_writable:
            write_json(self.path, {"key": self.key, "cost_model": cost_model})

    def _store_or_warn(self, cost_model: dict) -> None:
        try:
            self._store(cost_model)
        except (OSError, ValueError) as error:
            logger.warning(
                "the cost model cannot be kept (%s): the next start learns step times anew", error
            )


def load_latency(
    costs: CostFile, drafters: tuple[DrafterSpec, ...], files: FileThread
) -> LatencyModel | None:
    """Return the model of a file. None without one, and, after a warning, where the file is
    unusable."""
    try:
        return files.call(lambda: costs.load(drafters))
    except (ValueError, OSError) as error:
        logger.warning(
            "the cost model %s is unusable (%s): step times are learned anew", costs.path, error
        )
        return None


def read_card(path: Path | None, setup: dict, files: FileThread) -> Card | None:
    """Return the card at a path for a set-up (see describe_setup). None without a path, and, after
    a warning, where it is unreadable or of another model: vLLM serves on, and step times are
    learned from the first steps."""
    if path is None:
        return None
    try:
        card = files.call(lambda: Card.read(path))
        problem = card.problem(setup)
    except (ValueError, TimeoutError) as error:
        card, problem = None, str(error)
    if problem is not None:
        logger.warning(
            "card %s is not used: %s. Step times are learned from the first steps.", path, problem
        )
        return None
    return card


def card_latency(card: Card | None, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
    """Return the step times of a card, None where it has none for these drafters. vLLM runs a draft
    model in every step: passes that it keeps (kept_passes) are in the time of the target's pass."""
    if card is None:
        return None
    latency = LatencyModel.from_dict(card.latency)
    if latency.drafts and latency.drafts[0] is not None and drafters[0].kept_passes:
        pass_cost = latency.drafts[0]
        target = replace(
            latency.target,
            constant=latency.target.constant + pass_cost.constant,
            per_row=latency.target.per_row + pass_cost.slopes[0],
        )
        latency = LatencyModel(target, (CostCurve.linear(pass_cost.constant, pass_cost.slopes[0]),))
    try:
        latency.use_drafters(drafters)
    except ValueError as error:
        logger.warning("the card's step times are not used: %s", error)
        return None
    return latency
