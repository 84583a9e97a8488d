"""Chat templates: which one of a model's, and rendering it within limits.

A template is a program that came with a checkpoint. It may raise anything, loop or print without
end. It is run in a thread of its own, which is interrupted when its time is up.
"""

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

MAX_SECONDS = 2.0  # of one rendering; a long conversation takes 0.1
QUICK_SECONDS = 0.25  # that any number of renderings may take
# renderings that take longer at once: they compete with the engine for the interpreter
MAX_SLOW = 2
DEFAULT = "default"


class ChatTemplateError(ValueError):
    """A template does not render a conversation: it refuses that, or it is wrong, or is_slow."""

    is_slow = False


class ChatTemplate:
    """Renders conversations by the chat template of a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._slow = threading.BoundedSemaphore(MAX_SLOW)

    def text(self, tools: Sequence[dict] = ()) -> str | None:
        """The template of conversations with these tools, None if the tokenizer has none. Raises
        ChatTemplateError where it has only others."""
        if not self._tokenizer.chat_template:
            return None
        try:
            return self._tokenizer.get_chat_template(tools=list(tools) or None)
        except ValueError as error:
            names = ", ".join(sorted(self._tokenizer.chat_template))
            raise ChatTemplateError(
                f"the model has the chat templates {names} and no default, so that conversations "
                "need tools: start the server with --chat-template NAME"
            ) from error

    def render(self, messages: Sequence[dict], /, **options) -> str:
        """The text of a conversation. options: of apply_chat_template. Raises ChatTemplateError."""
        rendering = _Rendering(self._tokenizer, messages, options)
        rendering.start()
        rendering.join(QUICK_SECONDS)
        if rendering.is_alive() and self._slow.acquire(blocking=False):
            rendering.join(MAX_SECONDS - QUICK_SECONDS)
            self._slow.release()
        if rendering.is_alive():
            rendering.interrupt()
            error = ChatTemplateError(f"it takes longer than the {MAX_SECONDS:g} s that it may")
            error.is_slow = True
            raise error
        if rendering.error is not None:
            raise ChatTemplateError(
                str(rendering.error) or type(rendering.error).__name__
            ) from rendering.error
        return rendering.text


class _Interrupted(BaseException):
    """No Exception, which a template or what runs it might catch."""


class _Rendering(threading.Thread):
    """error: what has ended it; None if text is there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict], options: dict):
        super().__init__(name="chat template", daemon=True)
        self._tokenizer, self._messages, self._options = tokenizer, messages, options
        self.text = ""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.text = str(
                self._tokenizer.apply_chat_template(
                    list(self._messages), tokenize=False, **self._options
                )
            )
        except BaseException as error:  # whatever a template does with what it is given
            self.error = error

    def interrupt(self) -> None:
        """Raise in the thread, at its next instruction of Python."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.ident), ctypes.py_object(_Interrupted)
        )


def choose_template(tokenizer: PreTrainedTokenizerBase, choice: str | None) -> None:
    """Makes the template of that name, or of that file, the tokenizer's only one. None: its default
    and, with tools, `tool_use`; where it has but one, that one. Raises ValueError naming the
    choices."""
    templates = tokenizer.chat_template
    named = templates if isinstance(templates, dict) else {DEFAULT: templates} if templates else {}
    names = ", ".join(sorted(named)) or "none"
    if choice is None:
        if len(named) == 1:
            (tokenizer.chat_template,) = named.values()
        elif named and not {DEFAULT, "tool_use"} & named.keys():
            raise ValueError(
                f"the model has the chat templates {names}, and none is the default: give "
                "--chat-template"
            )
    elif choice in named:
        tokenizer.chat_template = named[choice]
    elif Path(choice).is_file():
        tokenizer.chat_template = Path(choice).read_text(encoding="utf-8-sig")
        _check_syntax(tokenizer, choice)
    else:
        raise ValueError(
            f"--chat-template {choice}: there is no such file, and the model's templates are: "
            f"{names}"
        )


def _check_syntax(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    try:
        ChatTemplate(tokenizer).render([{"role": "user", "content": "Hello"}])
    except ChatTemplateError as error:
        # Others may be what it says to such a conversation.
        if type(error.__cause__).__name__ == "TemplateSyntaxError":
            raise ValueError(f"--chat-template {path} is no template: {error}") from error
