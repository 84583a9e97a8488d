"""Options among the words of a command line of vLLM, which reads names with - and _ alike."""

from itertools import pairwise


def option_value(words: list[str], *names: str) -> str | None:
    """Return the value of an option, under any of its names; the last one counts. None without
    it."""
    value = None
    for word, next_word in pairwise([*words, ""]):
        name, equals, rest = word.partition("=")
        if option_name(name).startswith(tuple(f"{each}." for each in names)):
            raise ValueError(f"{word}: write {names[0]} as one JSON object")
        if option_name(name) in names:
            value = rest if equals else next_word
    return value


def drop_options(words: list[str], *names: str) -> list[str]:
    """Return the words without these options and their values."""
    words_left: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and option_name(name) not in names:
            words_left.append(word)
        is_value = not is_value and not equals and option_name(name) in names
    return words_left


def option_name(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name
