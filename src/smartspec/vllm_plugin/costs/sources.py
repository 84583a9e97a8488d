"""Cost models from before the start: one that was learned, in a file for each set-up, and that of a
card.

A set-up is a model with its device, parallelism, drafter and version of vLLM. Cards:
docs/observe.md.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
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

    def load(self, drafters: tuple[DrafterSpec, ...], files: FileThread) -> LatencyModel | None:
        """Return the model of this set-up. None without a file, and, after a warning, where it is
        unusable."""
        try:
            return files.call(lambda: self._read(drafters))
        except (ValueError, OSError) as error:
            logger.warning(
                "the cost model %s is unusable (%s): step times are learned anew", self.path, error
            )
            return None

    def _read(self, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
        try:
            data = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        if not isinstance(data, dict) or data.get("key") != self.key:
            raise ValueError("it is of another set-up")
        latency = LatencyModel.from_dict(data.get("cost_model"))
        latency.use_drafters(drafters)
        return latency

    def store(self, cost_model: dict) -> None:
        """Write LatencyModel.to_dict() whole or not at all, if is_writable. Where that is not
        possible, there is a warning."""
        if not self.is_writable:
            return
        try:
            write_json(self.path, {"key": self.key, "cost_model": cost_model})
        except (OSError, ValueError) as error:
            logger.warning(
                "the cost model cannot be kept (%s): the next start learns step times anew", error
            )


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
        problem = str(error)
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
