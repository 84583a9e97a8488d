"""The findings of a load that computed with a model, kept so that the next load need not compute
them again.

The checks of a load (load_check.py) take most of a start, and give the same for the same files,
options, software and processor. The name of a file of findings is the hash of all that; one that is
damaged, or that another user may have written, is not used.
"""

import functools
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from huggingface_hub import try_to_load_from_cache

from smartspec.engine.cache_folder import cache_folder, why_untrusted, write_file
from smartspec.engine.kernels.cpu import native, quantized_linear

logger = logging.getLogger(__name__)

ENGINE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Findings:
    """The findings about a checkpoint under the options of a load."""

    shape: dict  # fields of LoadedModel that a probe shows
    preparation: str  # of the modules, the first that computed what the stock model does
    rounds_to_int8: bool  # whether inputs of linears on blocks are rounded to 8 bits
    notes: list[str]  # what was logged on the way


class Notes:
    """The lines logged while a model is examined, kept to be logged again at the next load."""

    def __init__(self):
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)
        logger.warning(line)


def findings_path(source: str, files: dict[str, str], options: Iterable[str]) -> Path | None:
    """The path of the findings about a checkpoint under these options of a load. source, files: as
    `locate` gives them. None where its files are not known."""
    checkpoint = _files_of(source, files)
    if checkpoint is None:
        return None
    kernels = native.load_kernels(quantized_linear.LIBRARY).about
    software = [str(torch.__version__), transformers.__version__, _engine_digest()]
    key = [checkpoint, list(options), software, kernels, native.key(quantized_linear.LIBRARY)]
    return (
        cache_folder()
        / "findings"
        / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
    )


def read_findings(path: Path | None) -> Findings | None:
    """Return what is kept there, None where nothing is that can be relied on."""
    if path is None or not path.is_file() or why_untrusted(path) is not None:
        return None
    try:
        digest, text = path.read_text(encoding="utf-8").split("\n", 1)
        if digest != hashlib.sha256(text.encode()).hexdigest():
            raise ValueError("it is not what was written")
        return Findings(**json.loads(text))
    except (ValueError, TypeError, OSError) as error:
        logger.warning(
            "findings %s are unusable (%s): the model is checked again", path.name, error
        )
        return None


def keep_findings(path: Path | None, findings: Findings) -> None:
    """Keep the findings for the next load, where the cache folder can be written."""
    if path is None:
        return
    text = json.dumps(asdict(findings))
    try:
        write_file(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
    except OSError as error:
        logger.warning(
            "what was found out about the model could not be stored (%s); the next start checks "
            "again",
            error,
        )


def _files_of(source: str, files: dict[str, str]) -> list | None:
    """Name, size and times of all files of a checkpoint. The time of its last change is set by the
    system alone, so a file that was put in the place of another shows, whatever its size and
    date."""
    if files:
        parts = sorted(Path(source).glob("*.[gG][gG][uU][fF]"))  # it may be one of several
        paths = [Path(source, files["gguf_file"]), *parts]
    elif Path(source).is_dir():
        paths = sorted(path for path in Path(source).iterdir() if path.is_file())
    else:
        config = try_to_load_from_cache(source, "config.json")
        if not isinstance(config, str):
            return None
        paths = sorted(path for path in Path(config).parent.iterdir() if path.is_file())
    facts = [(path, path.stat()) for path in paths]
    return [
        (str(path.absolute()), f.st_size, f.st_ino, f.st_mtime_ns, f.st_ctime_ns)
        for path, f in facts
    ]


@functools.cache
def _engine_digest() -> str:
    """The digest of the source of the engine, which decides what is found."""
    digest = hashlib.sha256()
    for path in sorted(ENGINE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
