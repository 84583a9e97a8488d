"""The members of vLLM that the plugin uses, from needs.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Need:
    """The members of a class of vLLM that the plugin uses. See needs.toml."""

    file: str
    owner: str = ""
    methods: Mapping[str, list[str]] = field(default_factory=dict)
    attributes: Sequence[str] = ()
    base: Sequence[str] = ()


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NEEDS, ADAPTIVE_NEEDS = (
    tuple(Need(**each) for each in _TABLES[name]) for name in ("needs", "adaptive")
)


def need_of(file: str) -> Need:
    """Return the first need of a file of vLLM."""
    return next(need for need in (*NEEDS, *ADAPTIVE_NEEDS) if need.file == file)
