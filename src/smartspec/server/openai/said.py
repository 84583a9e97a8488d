"""The parts of an answer's text: a thought, text, and calls of tools."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from smartspec.server.openai.call_formats import HERMES, CallFormat
from smartspec.server.openai.thoughts import ThoughtReader
from smartspec.server.openai.tool_calls import ToolCall, ToolCallReader


@dataclass(frozen=True)
class Reading:
    """The rules for reading a text."""

    # it may begin with a thought, which the prompt has begun if the thought is_open
    thinks: bool = False
    is_open: bool = False
    max_calls: int = 0  # how many calls of tools it may hold; 0: what looks like one is text
    call_format: CallFormat = HERMES
    schemas: Mapping[str, dict] = field(default_factory=dict)  # of the arguments of each tool


PLAIN_TEXT = Reading()


@dataclass(frozen=True)
class Said:
    """A piece of an answer."""

    thought: str
    text: str
    calls: list[ToolCall]


class AnswerReader:
    """Takes the text of one choice piece by piece."""

    def __init__(self, reading: Reading):
        self._thoughts = ThoughtReader(reading.is_open) if reading.thinks else None
        calls = ToolCallReader(reading.max_calls, reading.call_format, reading.schemas)
        self._calls = calls if reading.max_calls else None

    def push(self, text: str, finish_reason: str | None) -> Said:
        """finish_reason: None where more may come."""
        thought, calls, is_last = "", [], finish_reason is not None
        if self._thoughts is not None:
            thought, text = self._thoughts.push(text, is_last)
        if self._calls is not None:
            text, calls = self._calls.push(text, is_last, finish_reason == "length")
        return Said(thought, text, calls)

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls
