"""The configuration of an engine from the options of a command."""

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.engine.runtime.config import EngineConfig


def engine_config_of(options: object) -> "EngineConfig":
    """Of a record of options: those that EngineConfig has and that are given, and the drafters.
    Raises ValueError for what is no configuration of an engine."""
    from smartspec.engine.runtime.config import EngineConfig, parse_drafters

    given = {field.name: getattr(options, field.name, None) for field in fields(EngineConfig)}
    if options.drafter is not None:
        given["drafters"] = parse_drafters(options.drafter)
    return EngineConfig(**{name: value for name, value in given.items() if value is not None})
