"""Configuration and tokenizer of a GGUF file in transformers' own form, made once.

transformers reads both out of the file in several seconds, most of them for the vocabulary; out of its own form in a
fraction of one.
"""

import hashlib
import json
from pathlib import Path

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from smartspec.engine.cache_folder import cache_folder, make_once
from smartspec.engine.models.gguf_file import GGUFFile


def configuration_folder(file: GGUFFile) -> Path:
    """Folder of config.json and tokenizer for this file, in the cache under a name that holds its header's digest.

    Raises OSError where the cache cannot be written, and whatever transformers raises for a file it cannot read.
    """
    digest = hashlib.sha256(file.header + transformers.__version__.encode()).hexdigest()[:16]
    return make_once(cache_folder() / "gguf" / f"{file.path.stem}-{digest}", lambda folder: _write(file.path, folder))


def _write(path: Path, folder: Path) -> None:
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    values = config.to_dict()
    for name in ("quantization_config", "_name_or_path"):  # neither holds here
        values.pop(name, None)
    values["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, type(config).__name__)]
    (folder / "config.json").write_text(json.dumps(values, default=str, indent=2), encoding="utf-8")
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
