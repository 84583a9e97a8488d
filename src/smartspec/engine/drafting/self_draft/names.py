"""The name of the target as its own drafter, self:WINDOW, and for which texts it drafts."""

PREFIX = "self"
# A text of fewer windows is not drafted for, as reading all of it takes little longer. With a window of 256 and all
# drafts accepted, tokens per second were 1.02 of those without drafts at 1,100 tokens, and 1.20 at 1,600.
LEAST_WINDOWS = 6


def is_self_draft(name: str) -> bool:
    """True where a drafter's name is self:WINDOW. Raises ValueError where the window is no positive number."""
    if name.split(":")[0] != PREFIX:
        return False
    self_window(name)
    return True


def self_window(name: str) -> int:
    """The window in tokens of a name self:WINDOW. Raises ValueError where it is no positive number."""
    text = name.removeprefix(PREFIX).removeprefix(":")
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(
            f"drafter {name!r}: the window must be a positive number of tokens, as in {PREFIX}:256 "
            f"(a model or head in a folder of that name is ./{PREFIX})"
        )
    return int(text)


def check_window(name: str, max_len: int) -> None:
    """Raises ValueError where no text of at most max_len tokens is long enough to be drafted for."""
    if LEAST_WINDOWS * (window := self_window(name)) >= max_len:
        raise ValueError(
            f"drafter {name!r}: it drafts after texts of more than {LEAST_WINDOWS * window} tokens, and the context is "
            f"{max_len}: use a window below {max_len / LEAST_WINDOWS:g}, or a larger --max-model-len"
        )
