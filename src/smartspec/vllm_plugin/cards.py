"""A start from a card (docs/cards.md): step times until there are own ones, and the acceptance to expect at first."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from smartspec.control import CostCurve, DrafterSpec, LatencyModel, SafeController
from smartspec.observation.card import Card

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


def read_card(path: Path | None, setup: dict) -> Card | None:
    """The card of this setup (see setup_of). None without one, and, after a warning, where it is unreadable or of
    another model: vLLM serves on, and step times are learned from the first steps."""
    if path is None:
        return None
    try:
        card = Card.read(path)
        problem = card.problem(setup)
    except ValueError as error:
        card, problem = None, str(error)
    if problem is not None:
        logger.warning("card %s is not used: %s. Step times are learned from the first steps.", path, problem)
        return None
    return card


def latency_of(card: Card | None, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
    """Its step times, None where it has none for these drafters. vLLM runs a draft model in every step: passes that it
    keeps (kept_passes) are in the time of the target's pass."""
    if card is None:
        return None
    latency = LatencyModel.from_dict(card.latency)
    if latency.drafts and latency.drafts[0] is not None and drafters[0].kept_passes:
        kept = latency.drafts[0]
        target = replace(
            latency.target,
            constant=latency.target.constant + kept.constant,
            per_row=latency.target.per_row + kept.slopes[0],
        )
        latency = LatencyModel(target, (CostCurve.linear(kept.constant, kept.slopes[0]),))
    try:
        latency.use_drafters(drafters)
    except ValueError as error:
        logger.warning("the card's step times are not used: %s", error)
        return None
    return latency


def expecting(
    card: Card, make_controller: Callable[[LatencyModel], SafeController]
) -> Callable[[LatencyModel], SafeController]:
    """Makes the same controller, which expects the card's acceptance of the first drafter until it knows better."""

    def make(latency: LatencyModel) -> SafeController:
        safe = make_controller(latency)
        safe.controller.expect_acceptance(0, card.acceptance, card.tested)
        return safe

    return make
