"""A decoder-only model, its tokenizer and the few numbers the engine needs, from a name, a folder or a GGUF file."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from smartspec.engine.attention.probe import AttentionCall, recorded_attention
from smartspec.engine.models.default_model import DEFAULT_MODEL, default_model_folder
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.linear import PackedLinear, make_linear, pack_linears, pad_small_batches, warm_up

KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Options of an attention call that change nothing for us or that our attention implements; any other must be off.
KNOWN_ATTENTION_OPTIONS = {"scaling", "dropout", "sliding_window", "position_ids", "use_cache", "is_causal"}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve: eval mode, no gradients, our attention; on CPU its linears packed and modules fused.

    vocab_size is the width of the logits; max_model_len the positions the model was made for; weight_bytes the size of
    the distinct parameters as loaded, before packing; min_rows: rows below which its linears do not become faster.
    """

    name: str
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int
    min_rows: int = 1


def load_model(name: str, *, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a model by DEFAULT_MODEL, Hugging Face id, local folder or path of a .gguf file.

    dtype: "auto" (float32 on CPU, bfloat16 on CUDA) or one of DTYPES. device: "auto" or a torch device.
    Raises ValueError for a dtype, device or architecture we cannot serve, OSError for a checkpoint that is missing or
    damaged; both name the remedy.
    """
    torch_device = _parse_device(device)
    torch_dtype = _parse_dtype(dtype, torch_device)
    source, files = _locate(name)
    model, tokenizer = _read(name, source, files, torch_dtype)
    model.requires_grad_(False).eval()
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    model.to(torch_device)
    mapped = _pack_tied_head(model, Path(source))
    fuse(model)
    _own_parameters(model, mapped)
    pack_linears(model)
    min_rows = pad_small_batches(model)
    warm_up(model)
    vocab_size, calls = _probe(model)
    _check_attention(name, model, calls)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        num_layers=len(calls),
        num_heads=calls[0].query.shape[1],
        num_kv_heads=calls[0].key.shape[1],
        head_dim=calls[0].key.shape[3],
        vocab_size=vocab_size,
        max_model_len=_max_model_len(name, model.config.get_text_config()),
        eos_token_ids=_eos_token_ids(model, tokenizer),
        dtype=torch_dtype,
        device=torch_device,
        weight_bytes=weight_bytes,
        min_rows=min_rows,
    )


def _parse_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N") from error
    if parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported: use auto, cpu, cuda or cuda:N")
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not there (torch sees {torch.cuda.device_count()}): use cpu")
    return parsed


def _parse_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _locate(name: str) -> tuple[str, dict[str, str]]:
    """What from_pretrained should open: a folder or hub id, and {"gguf_file": file} for a GGUF file."""
    if name == DEFAULT_MODEL:
        return str(default_model_folder()), {}
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise OSError(f"no such GGUF file: {path}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        _check_folder(path)
        return str(path), {}
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path:
        raise OSError(
            f"unknown model {name!r}: not a folder, and not an id of the form organisation/model; "
            f"the embedded model is {DEFAULT_MODEL!r}"
        )
    return name, {}


def _check_folder(folder: Path) -> None:
    """Raise OSError where config or weights are missing or a safetensors file is cut short; reads headers only."""
    if not (folder / "config.json").is_file():
        raise OSError(f"{folder} holds no config.json: give the folder of a Hugging Face checkpoint or a .gguf file")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not list(folder.glob("*.bin")):
        raise OSError(f"{folder} holds no weights (*.safetensors): download the checkpoint again")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise OSError(f"{path} is damaged or cut short ({error}): download or convert it again") from error


def _read(
    name: str, source: str, files: dict[str, str], dtype: torch.dtype
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    # Imported here because attention.py is the heart of the engine and only this call needs its name.
    from smartspec.engine.attention.ragged import ATTENTION_NAME, register_attention

    register_attention()
    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(source, **files)
        _check_architecture(name, config)
        model, info = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=ATTENTION_NAME, output_loading_info=True, **files
        )
        tokenizer = AutoTokenizer.from_pretrained(source, **files)
    except UnsupportedModelError:
        raise
    except Exception as error:  # transformers raises many kinds for what is one thing here: the checkpoint is unusable
        raise OSError(
            f"cannot load model {name!r}: {error}\nUse {DEFAULT_MODEL!r}, a local checkpoint folder, a .gguf file, or "
            "a Hugging Face id that can be downloaded or is in the local cache."
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise OSError(f"the checkpoint of {name!r} lacks {len(missing)} weights, {missing[0]!r} among them")
    return model, tokenizer


class UnsupportedModelError(ValueError):
    """The checkpoint is readable, but its architecture is not one we serve."""


def _check_architecture(name: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name!r} is an encoder-decoder ({config.model_type}): use a decoder-only model")
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    architectures = set(config.architectures or causal)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or not causal & architectures:
        kind = ", ".join(config.architectures or [config.model_type])
        raise UnsupportedModelError(f"{name!r} is not a causal language model ({kind}): use a decoder-only model")
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


def _pack_tied_head(model: nn.Module, folder: Path) -> nn.Parameter | None:
    """Pack a head that shares the embedding's weight, without keeping that weight in memory twice.

    Packing reads the whole of the mapped file; mapped anew, only the rows that are looked up become resident. Returns
    the embedding where that was possible.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight is not embedding.weight:
        return None
    packed = make_linear(head.weight, head.bias)
    parameters = model.named_parameters(remove_duplicate=False)
    names = {name for name, parameter in parameters if parameter is embedding.weight}
    again = _map_tensor(folder, names) if isinstance(packed, PackedLinear) else None
    if again is None or again.dtype != embedding.weight.dtype or not torch.equal(again[-1], embedding.weight[-1]):
        return None
    model.set_output_embeddings(packed)
    embedding.weight.data = again
    return embedding.weight


def _map_tensor(folder: Path, names: set[str]) -> torch.Tensor | None:
    """The tensor a checkpoint folder stores under one of these names."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in names.intersection(file.keys()):
                return file.get_tensor(name)
    return None


def _own_parameters(model: nn.Module, mapped: nn.Parameter | None) -> None:
    """Copy what is still mapped from a checkpoint file, so that the file's pages can leave memory."""
    for parameter in model.parameters():
        if parameter is not mapped:
            parameter.data = parameter.data.clone()


def _probe(model: nn.Module) -> tuple[int, list[AttentionCall]]:
    """Width of the logits and the attention calls of one pass over two tokens."""
    token_ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    with torch.inference_mode(), recorded_attention(model.config.get_text_config()) as calls:
        logits = model(input_ids=token_ids, position_ids=positions, use_cache=False).logits
    return logits.shape[-1], calls


def _check_attention(name: str, model: nn.Module, calls: list[AttentionCall]) -> None:
    """Our cache holds keys and values of one shape per layer, and our attention knows causal and sliding windows."""
    num_layers = model.config.get_text_config().num_hidden_layers
    problem = None
    if sorted(call.module.layer_idx for call in calls) != list(range(num_layers)):
        problem = f"only {len(calls)} of its {num_layers} layers use the attention interface of transformers"
    elif any(call.key.shape != calls[0].key.shape or call.value.shape != calls[0].key.shape for call in calls):
        problem = "its layers or its keys and values differ in shape"
    options = {key for call in calls for key, value in call.options.items() if value is not None and value is not False}
    if not problem and options - KNOWN_ATTENTION_OPTIONS:
        problem = f"its attention uses {', '.join(sorted(options - KNOWN_ATTENTION_OPTIONS))}"
    if not problem and any(not getattr(call.module, "is_causal", True) for call in calls):
        problem = "its attention is not causal"
    if problem:
        raise UnsupportedModelError(f"{name!r} ({type(model).__name__}) is not supported: {problem}")


def _max_model_len(name: str, config: PretrainedConfig) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise UnsupportedModelError(f"{name!r} is not supported: its config names no max_position_embeddings")
    return int(length)


def _eos_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)
