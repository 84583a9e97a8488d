"""The settings of an operator, in `--additional-config '{"smartspec": {...}}'` or the environment
(docs/vllm.md)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from smartspec.core.cache_folder import cache_folder

SECTION = "smartspec"
PREFIX = "SMARTSPEC_"
NUMBERS = {
    "metrics_seconds": (float("inf"), "a number of seconds"),
    "guard": (2.0, "a ratio from 0 (never) to 2"),
}
PATHS = ("decision_log", "cache", "card")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}
OBSERVE = "observe"  # the policy that changes nothing


@dataclass(frozen=True)
class Settings:
    """The settings of one server."""

    policy: str = "goodput"  # as `smartspec serve --policy`, or OBSERVE
    decision_log: Path | None = None  # file for every decision; it must not exist yet
    # folder of cost models, metrics and observations
    cache: Path = field(default_factory=lambda: cache_folder({}))
    metrics_seconds: float = 1.0  # between two hand-overs of metrics to the API server
    # names of the drafters in the scheduler, if there are any; None for the best
    drafter: str | None = None
    # folder, "none" for none; None: one of SmartSpec's that fits the tokenizer
    datastore: str | None = None
    card: Path | None = None  # file to start from where the cache has no step times
    act: bool = False  # measure in windows with SmartSpec and without it
    # least share of the speed without speculation; 0: none, None: see make_toggle
    guard: float | None = None

    @staticmethod
    def read(additional_config: object, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read vLLM's additional configuration, else the environment, else the defaults. ValueError
        names a setting that is unknown or not of its type."""
        section = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
        if not isinstance(section, dict):
            raise ValueError(
                f"additional_config[{SECTION!r}] is {section!r}: it must be an object of settings"
            )
        names = {field.name for field in fields(Settings)}
        if unknown := sorted(set(section) - names):
            raise ValueError(
                f"unknown settings {unknown} in additional_config[{SECTION!r}]: use {sorted(names)}"
            )
        variables = {name: environment.get(PREFIX + name.upper()) for name in names}
        values = {name: value for name, value in variables.items() if value} | section
        settings = Settings(**{name: _convert(name, value) for name, value in values.items()})
        if settings.act and settings.policy == OBSERVE:
            raise ValueError(
                "act is true and policy is 'observe', which changes nothing: leave one out"
            )
        return settings

    @property
    def has_cost_model(self) -> bool:
        """True if the policy compares predicted times, and so needs a cost model."""
        return self.policy not in ("off", OBSERVE) and not self.policy.startswith("fixed:")


def _convert(name: str, value: object):
    if name in NUMBERS:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = -1.0
        most, unit = NUMBERS[name]
        if isinstance(value, bool) or not 0 <= number < most:
            raise ValueError(f"setting {name!r} is {value!r}: use {unit}")
        return number
    if name == "act":
        if str(value).lower() not in SWITCHES:
            raise ValueError(f"setting {name!r} is {value!r}: use true or false")
        return SWITCHES[str(value).lower()]
    if not isinstance(value, str):
        raise ValueError(f"setting {name!r} is {value!r}: use a text")
    # no shell does that for a variable or JSON
    return Path(os.path.expanduser(value)) if name in PATHS else value
