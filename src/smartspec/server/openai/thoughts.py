"""Thoughts, told from the answer in the text that a model writes: <think>...</think> before what it
says.

These are the marks of DeepSeek-R1, Qwen3, GLM and most other models that think.
"""

from collections.abc import Iterable

from smartspec.server.openai.tool_calls import begin_of_mark

BEGIN, END = "<think>", "</think>"


class ThoughtReader:
    """Takes the text of one choice piece by piece; separates the thought that it begins with from
    what is said.

    is_open: the prompt has begun the thought. The result does not depend on how the text is cut
    into pieces. Held back are only white space and a few characters that may begin a mark. A
    thought that does not end takes all the text.
    """

    def __init__(self, is_open: bool):
        self.has_thought = is_open
        self.has_said = False  # the thought has ended, or there is none
        self._has_begun = False
        self._skips_space = False  # between a mark and a text
        self._rest = ""  # not looked at yet

    def push(self, text: str, is_last: bool) -> tuple[str, str]:
        """New text of the thought and of what is said."""
        text, self._rest = self._rest + text, ""
        if not self._has_begun:
            text = self._begin(text, is_last)
        if not self._has_begun:
            return "", ""
        text = self._without_space(text)
        if self.has_said:
            return "", text
        thought, end, said = text.partition(END)
        if end:
            self.has_said = self._skips_space = True
            return thought.rstrip(), self._without_space(said)
        shown = (text if is_last else text[: begin_of_mark(text, 0, END)]).rstrip()
        self._rest = "" if is_last else text[len(shown) :]
        return shown, ""

    def _begin(self, text: str, is_last: bool) -> str:
        """The text after a mark that begins a thought. What may become a mark waits for more."""
        start = text.lstrip()
        if not is_last and BEGIN.startswith(start):
            self._rest = text
            return ""
        self._has_begun = True
        self.has_thought |= start.startswith(BEGIN)
        self.has_said = not self.has_thought
        self._skips_space = self.has_thought
        return start.removeprefix(BEGIN) if self.has_thought else text

    def _without_space(self, text: str) -> str:
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        return text


def num_thought_tokens(texts: Iterable[str], is_open: bool) -> int:
    """The number of an answer's tokens that are its thought, marks included. texts: what each token
    brought."""
    reader, num_tokens = ThoughtReader(is_open), 0
    for text in texts:
        reader.push(text, False)
        num_tokens += 1
        if reader.has_said:
            break
    return num_tokens if reader.has_thought else 0
