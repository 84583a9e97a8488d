"""Configuration and tokenizer of a GGUF file in transformers' own form, made once.

A tokenizer is made of the file's vocabulary in a second or more; transformers reads its own form in
a fraction of one.
"""

import hashlib
import json
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from smartspec.engine.cache_folder import cache_folder, make_once
from smartspec.engine.models.gguf_config import make_config
from smartspec.engine.models.gguf_file import GGUFFile
from smartspec.engine.models.gguf_tokenizer import make_tokenizer
from smartspec.engine.models.gguf_vocabulary import read_vocabulary


def configuration_folder(file: GGUFFile, values: dict) -> Path:
    """Folder of config.json and tokenizer for this file, in the cache under a name that holds the
    digest of its header, of the values of its configuration and of the code that makes the folder.

    Raises OSError where the cache cannot be written, and whatever transformers raises for a file it
    cannot read.
    """
    said = json.dumps(values, sort_keys=True, default=str) + transformers.__version__
    digest = hashlib.sha256(file.header + said.encode() + _code()).hexdigest()[:16]
    folder = cache_folder() / "gguf" / f"{file.path.stem}-{digest}"
    return make_once(folder, lambda folder: _write(file.path, values, folder))


def _code() -> bytes:
    """The source of all that reads GGUF files here: what an older version made must not be
    taken."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("gguf_*.py")))


def _write(path: Path, values: dict, folder: Path) -> None:
    config = make_config(values)
    config.architectures = [
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, type(config).__name__)
    ]
    vocabulary = read_vocabulary(path)
    config.eos_token_id = sorted(vocabulary.ends)
    config.save_pretrained(folder)
    make_tokenizer(vocabulary).save_pretrained(folder)
