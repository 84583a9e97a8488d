"""The settings of a person, in `--additional-config '{"smartspec": {...}}'` or the environment (docs/vllm.md)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

SECTION = "smartspec"
PREFIX = "SMARTSPEC_"
VERIFICATION = ("smartspec", "vllm")
NUMBERS = {"metrics_seconds": (float("inf"), "a number of seconds"), "guard": (2.0, "a ratio from 0 (never) to 2")}
PATHS = ("decision_log", "cache", "card")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}
OBSERVE = "observe"  # the policy that changes nothing


@dataclass(frozen=True)
class Settings:
    """policy: as `smartspec serve --policy`, or OBSERVE. decision_log: file to write every decision to, must not exist
    yet. cache: folder of learned cost models. metrics_seconds: how often metrics are handed to the API server.
    verification: whose step times vLLM's adaptive verification goes by, "smartspec" or "vllm". card: file to start from
    where the cache has no step times. act: measure what SmartSpec brings, in windows with and without it. guard: share
    of the speed without speculation below which it goes off, 0 for never; None is LEAST_RATIO where SmartSpec's own
    policy decides, else 0.

    Where drafts are made in the scheduler: drafter: names of those that draft, None for what is best. datastore: their
    folder, "none" for none; without a name one that comes with SmartSpec, if it fits the tokenizer."""

    policy: str = "goodput"
    decision_log: Path | None = None
    cache: Path = Path.home() / ".cache" / "smartspec"
    metrics_seconds: float = 1.0
    verification: str = "smartspec"
    drafter: str | None = None
    datastore: str | None = None
    card: Path | None = None
    act: bool = False
    guard: float | None = None

    @staticmethod
    def read(additional_config: object, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Reads vLLM's additional configuration, else the environment, else the defaults. ValueError names what is
        unknown or not of its type."""
        section = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
        if not isinstance(section, dict):
            raise ValueError(f"additional_config[{SECTION!r}] is {section!r}: it must be an object of settings")
        names = {field.name for field in fields(Settings)}
        if unknown := sorted(set(section) - names):
            raise ValueError(f"unknown settings {unknown} in additional_config[{SECTION!r}]: use {sorted(names)}")
        of_environment = {name: environment.get(PREFIX + name.upper()) for name in names}
        given = {name: value for name, value in of_environment.items() if value} | section
        settings = Settings(**{name: _converted(name, value) for name, value in given.items()})
        if settings.act and settings.policy == "observe":
            raise ValueError("act is true and policy is 'observe', which changes nothing: leave one out")
        return settings

    @property
    def learns_times(self) -> bool:
        """Whether the policy compares predicted times, and so needs a cost model."""
        return self.policy not in ("off", OBSERVE) and not self.policy.startswith("fixed:")


def _converted(name: str, value: object):
    if name in NUMBERS:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = -1.0
        most, what = NUMBERS[name]
        if isinstance(value, bool) or not 0 <= number < most:
            raise ValueError(f"setting {name!r} is {value!r}: use {what}")
        return number
    if name == "act":
        if str(value).lower() not in SWITCHES:
            raise ValueError(f"setting {name!r} is {value!r}: use true or false")
        return SWITCHES[str(value).lower()]
    if not isinstance(value, str):
        raise ValueError(f"setting {name!r} is {value!r}: use a text")
    if name == "verification" and value not in VERIFICATION:
        raise ValueError(f"setting {name!r} is {value!r}: use {' or '.join(VERIFICATION)}")
    return Path(os.path.expanduser(value)) if name in PATHS else value  # no shell does that for a variable or JSON
