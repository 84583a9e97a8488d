"""vLLM's `--config FILE`: what it says is read here too, so that nothing in it is overruled without
a word."""

import json
from collections.abc import Collection
from pathlib import Path

from smartspec.vllm_plugin.serve.words import option_name, option_value

OPTION = "--config"


def with_file(words: list[str], own: Collection[str]) -> list[str]:
    """Return the words of a command line after those of its `--config FILE`, as vLLM reads them:
    the last one counts. own: names of options that vLLM does not have, or not with the same effect.
    ValueError on such a name in the file, and on a file that cannot be read."""
    if any(option_name(word).startswith(f"{OPTION}=") for word in words):
        raise ValueError(f"vLLM reads a file only after a space: {OPTION} FILE")
    if (path := option_value(words, OPTION)) is None:
        return words
    values = _read(Path(path))
    for name in values:
        if option_name(f"--{name}") in own:
            raise ValueError(
                f"{name} in {path}: write it in the command, {option_name(f'--{name}')} "
                f"{values[name]}"
            )
    num_first = 1 if words and not words[0].startswith("-") else 0  # the model
    file_words = [word for name, value in values.items() for word in _words(f"--{name}", value)]
    return [*words[:num_first], *file_words, *words[num_first:]]


def _read(path: Path) -> dict:
    try:
        import yaml  # vLLM needs it, too
    except ImportError as error:
        raise ValueError(f"{OPTION} {path} needs PyYAML, as in vLLM: pip install pyyaml") from error
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{OPTION} {path} cannot be read ({error})") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(
            f"{OPTION} {path}: write a line `option: value` for each option of vllm serve"
        )
    return values


def _words(name: str, value: object) -> list[str]:
    """As vLLM's load_config_file does (0.32: utils/argparse_utils.py), but for false, which matters
    to vLLM alone."""
    if isinstance(value, bool):
        return [name] if value else []
    if isinstance(value, list):
        return [name, *map(str, value)] if value else []
    return [name, json.dumps(value) if isinstance(value, dict) else str(value)]
