"""Reading a checkpoint: where it lies, whether it is whole, and whether its kind is one we
serve."""

import logging
import re
from pathlib import Path

import torch
from huggingface_hub import model_info, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.utils.logging import disable_progress_bar

from smartspec.engine.attention.ragged import ATTENTION_NAME, register_attention
from smartspec.engine.models.default_model import DEFAULT_MODEL, default_model_file
from smartspec.engine.models.gguf_config import config_values
from smartspec.engine.models.gguf_file import GGUFFile, gguf_in, open_gguf
from smartspec.engine.models.gguf_model import read_gguf_model, why_unpacked
from smartspec.engine.models.gguf_text import configuration_folder
from smartspec.engine.models.sampling_defaults import keep_gguf_defaults
from smartspec.engine.models.unsupported import UnsupportedModelError
from smartspec.engine.models.weight_files import weight_files

logger = logging.getLogger(__name__)

HUB_SECONDS = 10.0
KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}


def locate(name: str) -> tuple[str, dict[str, str]]:
    """The arguments for from_pretrained: a folder or hub id, and {"gguf_file": file} for a GGUF
    file."""
    path = default_model_file() if name == DEFAULT_MODEL else Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        path = gguf_in(path) or path
    if path.is_file():  # of whatever name: opening it tells whether it is one
        return str(path.parent), {"gguf_file": path.name}
    if path.suffix.lower() == ".gguf":
        raise OSError(f"no such GGUF file: {path}")
    if path.is_dir():
        _check_folder(path)
        return str(path), {}
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path:
        raise OSError(
            f"unknown model {name!r}: not a folder, and not an id of the form organisation/model; "
            f"the embedded model is {DEFAULT_MODEL!r}"
        )
    _check_hub(name)
    return name, {}


def _check_hub(name: str) -> None:
    """Raise OSError where a hub id is neither in the local cache nor to be had: a download would
    try again for long."""
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        model_info(name, timeout=HUB_SECONDS)
    except Exception as error:  # the library raises many kinds for what is one thing here
        reason = re.sub(r"\[Errno -?\d+\] ", "", str(error).split("\n")[0]) or type(error).__name__
        raise OSError(
            f"unknown model {name!r}: no folder, not in the local cache, and the hub does not have "
            f"it or cannot be reached ({reason}); the embedded model is {DEFAULT_MODEL!r}"
        ) from error


def _check_folder(folder: Path) -> None:
    """Raise OSError where config or weights are missing or a safetensors file is cut short; reads
    headers only."""
    if not (folder / "config.json").is_file():
        raise OSError(
            f"{folder} holds no config.json, nor one GGUF file: give the folder of a Hugging Face "
            "checkpoint, a GGUF file or, of drafters, a trained head (of one whose training was "
            "interrupted, give that command again)"
        )
    weight_files(folder, ("model.safetensors", "pytorch_model.bin"))  # as transformers looks
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not list(folder.glob("*.bin")):
        raise OSError(f"{folder} holds no weights (*.safetensors): download the checkpoint again")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise OSError(
                f"{path} is damaged or cut short ({error}): download or convert it again"
            ) from error


def read_checkpoint(
    name: str, source: str, files: dict[str, str], dtype: torch.dtype | None, *, keep_blocks: bool
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """The stock model, set to our attention, and its tokenizer; source, files: as `locate` gives
    them.

    dtype: None takes that of the checkpoint's configuration, of a GGUF file fp32. keep_blocks:
    weights of a GGUF file stay in its blocks (QuantizedLinear, QuantizedEmbedding) where that is
    possible.
    """
    register_attention()
    disable_progress_bar()
    if files:
        return _read_gguf(
            name, open_gguf(Path(source) / files["gguf_file"]), dtype or torch.float32, keep_blocks
        )
    try:
        config = AutoConfig.from_pretrained(source)
        _check_architecture(name, config)
        model = _stock_model(name, source, dtype)
        return model, AutoTokenizer.from_pretrained(source)
    except UnsupportedModelError:
        raise
    except Exception as error:
        # transformers raises many kinds for what is one thing here: the checkpoint is unusable
        raise OSError(
            f"cannot load model {name!r}: {error}\nUse {DEFAULT_MODEL!r}, a local checkpoint "
            "folder, a .gguf file, or a Hugging Face id that can be downloaded or is in the local "
            "cache."
        ) from error


def _stock_model(name: str, source: str, dtype: torch.dtype | None) -> nn.Module:
    model, info = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype or "auto", attn_implementation=ATTENTION_NAME, output_loading_info=True
    )
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise OSError(
            f"the checkpoint of {name!r} lacks {len(missing)} weights, {missing[0]!r} among them"
        )
    return model


def _read_gguf(
    name: str, file: GGUFFile, dtype: torch.dtype, keep_blocks: bool
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """keep_blocks: as in read_checkpoint. Weights that cannot stay in their blocks are unpacked,
    and a line says so."""
    try:
        values, known = config_values(file)
        folder = configuration_folder(file, values)
        config = AutoConfig.from_pretrained(folder)
        _check_architecture(name, config)
        # no class of the model's would keep it as it is
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        if keep_blocks and (reason := why_unpacked(file)):
            logger.warning("%s: its weights are unpacked to %s, because %s", name, dtype, reason)
            keep_blocks = False
        options = {"keep_blocks": keep_blocks, "dtype": torch.float32 if keep_blocks else dtype}
        model = read_gguf_model(file, config, ATTENTION_NAME, known=known, **options)
        keep_gguf_defaults(model.generation_config, file.scalars)
        return model, tokenizer
    except (UnsupportedModelError, OSError):
        raise
    except Exception as error:  # as above
        problem = (
            f"the GGUF file is damaged, cut short or of an unknown kind ({error}): download or "
            "convert it again"
        )
        raise OSError(f"cannot load model {name!r}: {problem}") from error


def _check_architecture(name: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{name!r} is an encoder-decoder ({config.model_type}): use a decoder-only model"
        )
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    architectures = set(config.architectures or causal)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or not causal & architectures:
        kind = ", ".join(config.architectures or [config.model_type])
        raise UnsupportedModelError(
            f"{name!r} is not a causal language model ({kind}): use a decoder-only model"
        )
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if model_class._is_stateful or layer_types - KNOWN_LAYER_TYPES:
        raise UnsupportedModelError(
            f"{name!r} ({config.model_type}) keeps state other than keys and values: use a model "
            "with plain attention layers"
        )
    if not model_class._supports_attention_backend:
        raise UnsupportedModelError(
            f"{name!r} ({config.model_type}) does not use the attention interface of transformers"
        )
