"""The names of the target's first layers as its drafter: exit:LAYER, and exit:auto for several exits."""

from collections.abc import Iterable

PREFIX, AUTO = "exit", "auto"
AUTO_PARTS = 4  # exit:auto has exits after 1/4, 2/4 and 3/4 of the layers


def is_exit(name: str) -> bool:
    """Whether a drafter's name is exit:LAYER or exit:auto. Raises ValueError where the layer is no positive number."""
    if name.split(":")[0] != PREFIX:
        return False
    if name != f"{PREFIX}:{AUTO}":
        exit_layer(name)
    return True


def exit_layer(name: str) -> int:
    """How many layers a draft pass of exit:LAYER has. Raises ValueError where it is no positive number."""
    text = name.removeprefix(PREFIX).removeprefix(":")
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(
            f"drafter {name!r}: the exit must be a number of layers, as in {PREFIX}:8, or {PREFIX}:{AUTO} "
            f"(a model or head in a folder of that name is ./{PREFIX})"
        )
    return int(text)


def check_exit(name: str, num_layers: int) -> None:
    """Raises ValueError where the target, of num_layers layers, has no layer above the exit."""
    if exit_layer(name) >= num_layers:
        raise ValueError(
            f"drafter {name!r}: the target has {num_layers} layers, so an exit must be after layer 1 to "
            f"{num_layers - 1}"
        )


def expand_exits(names: Iterable[str], num_layers: int) -> tuple[str, ...]:
    """The names with exit:auto replaced by exits of a target of num_layers layers; each name once."""
    found: list[str] = []
    for name in names:
        is_auto = name == f"{PREFIX}:{AUTO}"
        layers = sorted({part * num_layers // AUTO_PARTS for part in range(1, AUTO_PARTS)} - {0}) if is_auto else []
        found += [f"{PREFIX}:{layer}" for layer in layers] if is_auto else [name]
    return tuple(dict.fromkeys(found))
