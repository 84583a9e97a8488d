"""A card's step times, drafter and acceptance as settings of a scenario."""

from pathlib import Path
from typing import Any

from smartspec.control import LatencyModel
from smartspec.observation.card import Card
from smartspec.sim.settings import ScenarioSettings

KV_TOKENS = 500_000  # a card says nothing about memory


def with_card(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings with those of the card. What the caller gave beside it stays: acceptance,
    drafter, longest draft, memory. ValueError on a file that is no card, and on hardware beside
    it."""
    card, usual = Card.read(path), ScenarioSettings()
    if settings["hardware"] != usual.hardware:
        raise ValueError(
            f"--card {path} and --hardware {settings['hardware']}: the card has the step times"
        )
    has_passes = bool(LatencyModel.from_dict(card.latency).drafts)
    of_card = {
        "acceptance": str(path),
        "drafter": "model" if has_passes else "lookup",
        "max_draft_tokens": card.longest,
        "kv_tokens": KV_TOKENS,
    }
    kept = {
        name: value for name, value in of_card.items() if settings[name] == getattr(usual, name)
    }
    return settings | kept | {"hardware": str(path)}
