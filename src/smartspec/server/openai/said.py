"""The parts of an answer's text: a thought, text, and calls of tools."""

from dataclasses import dataclass

from smartspec.server.openai.thoughts import ThoughtReader
from smartspec.server.openai.tool_calls import ToolCall, ToolCallReader


@dataclass(frozen=True)
class Reading:
    """The rules for reading a text."""

    thinks: bool = False  # it may begin with a thought, which the prompt has begun if the thought is_open
    is_open: bool = False
    max_calls: int = 0  # how many calls of tools it may hold; 0: what looks like one is text


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
        self._calls = ToolCallReader(reading.max_calls) if reading.max_calls else None

    def push(self, text: str, is_last: bool) -> Said:
        thought, calls = "", []
        if self._thoughts is not None:
            thought, text = self._thoughts.push(text, is_last)
        if self._calls is not None:
            text, calls = self._calls.push(text, is_last)
        return Said(thought, text, calls)

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls
