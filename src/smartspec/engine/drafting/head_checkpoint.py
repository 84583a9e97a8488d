"""EAGLE-3 and P-EAGLE heads on disk: the `speculators` format, as vLLM loads it, and the layout of the original EAGLE-3
checkpoints."""

import json
import pickle
import tempfile
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig

from smartspec.engine.drafting.eagle3 import Eagle3Head, HeadConfig, default_taps
from smartspec.engine.drafting.p_eagle import PEagleHead
from smartspec.engine.models.loaded_model import LoadedModel

VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
WEIGHTS = "model.safetensors"
ORIGINAL_WEIGHTS = ("pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
DEFAULT_DEPTHS = 8  # of a P-EAGLE head that does not say: those of the library's training


def read_head(folder: Path, target: LoadedModel) -> tuple[Eagle3Head, torch.Tensor | None]:
    """A head for this target in fp32, and its own embedding [V, hidden_size] where it brings one.

    Raises ValueError where it is for another target, OSError where the checkpoint is damaged; both name the remedy.
    """
    data = read_json(folder / "config.json")
    config = _config(folder, data, target)
    weights = _read_weights(folder)
    _check_target(folder, config, target)
    head = _p_eagle(folder, data, config) if data.get("speculators_model_type") == "peagle" else Eagle3Head(config)
    embedding = weights.pop("embed_tokens.weight", None)
    if "d2t" not in weights and config.draft_vocab_size == target.vocab_size:
        weights["d2t"] = torch.zeros(target.vocab_size, dtype=torch.int64)
    check_weights(folder, head, weights)
    head.load_state_dict(weights)
    outside = (head.target_ids < 0) | (head.target_ids >= target.vocab_size)
    if outside.any():
        raise ValueError(
            f"{folder}: its index map d2t names token {int(head.target_ids[outside][0])}, the target has "
            f"{target.vocab_size} tokens: use a head that was trained for {target.name!r}"
        )
    return head.requires_grad_(False).eval(), embedding


def _p_eagle(folder: Path, data: dict, config: HeadConfig) -> PEagleHead:
    token_id = data.get("mask_token_id")
    if not isinstance(token_id, int) or not 0 <= token_id < config.layer.vocab_size:
        raise ValueError(
            f"{folder}: mask_token_id is {token_id!r}, it must be a token of the {config.layer.vocab_size} that the "
            "target has: use a head that was trained for it"
        )
    proposals = (data.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return PEagleHead(config, token_id, proposals[0].get("speculative_tokens") or DEFAULT_DEPTHS)


def write_head(folder: Path, head: Eagle3Head, target_name: str, architecture: str, num_draft_tokens: int = 5) -> None:
    """Write a head in bfloat16, config.json last: a folder with one is whole. target_name: what it was trained for.

    Raises OSError naming the file (disk full, no permission)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.contiguous() if name == "d2t" else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    t2d = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    t2d[head.target_ids] = True
    config = _to_json(head.config, target_name, architecture, num_draft_tokens)
    if isinstance(head, PEagleHead):
        config = _to_json(head.config, target_name, architecture, head.num_depths)
        config |= {"architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle"}
        config |= {"mask_token_id": head.mask_token_id}
        config["speculators_config"]["algorithm"] = "peagle"
    write_files(folder, {**tensors, "t2d": t2d}, config)


def write_files(folder: Path, tensors: dict[str, torch.Tensor], config: dict) -> None:
    """Weights and config.json, each whole or not at all, config.json last. Raises OSError naming the folder."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as name:
            save_file(tensors, Path(name) / WEIGHTS, metadata={"format": "pt"})
            (Path(name) / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            for file in (WEIGHTS, "config.json"):
                (Path(name) / file).replace(folder / file)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write a head to {folder} ({error}): make room, then give the command again") from error


def layer_config(folder: Path, data: dict, **defaults: int) -> LlamaConfig:
    """The shape of a head's decoder layer, of what its config.json says. Raises ValueError where no layer has it."""
    try:
        layer = defaults | data.get("transformer_layer_config", data)
        return LlamaConfig(**{k: v for k, v in layer.items() if k not in ("architectures", "model_type", "dtype")})
    except (StrictDataclassError, TypeError, ValueError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{folder}/config.json is of no layer ({reason}): download or train the head again") from error


def _config(folder: Path, data: dict, target: LoadedModel) -> HeadConfig:
    config = layer_config(folder, data, vocab_size=target.vocab_size)
    taps = data.get("eagle_aux_hidden_state_layer_ids") or (data.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    taps = taps or default_taps(target.num_layers)
    return HeadConfig(
        layer=config,
        draft_vocab_size=data.get("draft_vocab_size") or config.vocab_size,
        taps=tuple(taps) if isinstance(taps, list | tuple) else (taps,),
        target_hidden_size=data.get("target_hidden_size") or config.hidden_size,
        **{name: bool(data.get(name, False)) for name in VARIANTS},
    )


def _to_json(config: HeadConfig, target_name: str, architecture: str, num_draft_tokens: int) -> dict:
    proposal = {"proposal_type": "greedy", "speculative_tokens": num_draft_tokens}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": [architecture]},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
        **{name: getattr(config, name) for name in VARIANTS},
        "transformer_layer_config": config.layer.to_diff_dict(),
    }


def _check_target(folder: Path, config: HeadConfig, target: LoadedModel) -> None:
    size = target.model.config.get_text_config().hidden_size
    problem = None
    if config.target_hidden_size != size:
        problem = f"it reads features of size {config.target_hidden_size}, the target's are of {size}"
    elif config.layer.vocab_size != target.vocab_size:
        problem = f"it is for a vocabulary of {config.layer.vocab_size} tokens, the target has {target.vocab_size}"
    elif not all(isinstance(tap, int) and 1 <= tap <= target.num_layers for tap in config.taps):
        problem = f"it taps layers {list(config.taps)}, the target has {target.num_layers}"
    elif not isinstance(config.draft_vocab_size, int) or config.draft_vocab_size > target.vocab_size:
        problem = f"it drafts from {config.draft_vocab_size!r} tokens, the target has {target.vocab_size}"
    elif config.layer.num_hidden_layers != 1:
        problem = f"it has {config.layer.num_hidden_layers} layers, one is supported"
    if problem:
        raise ValueError(
            f"{folder} is no head for {target.name!r}: {problem}; use one that was trained for this target"
        )


def check_weights(folder: Path, head: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Raise where these are not the weights of a head: OSError where some are missing, else ValueError."""
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    remedy = "download or train it again"
    if missing := sorted(expected.keys() - weights.keys()):
        raise OSError(f"{folder} lacks {len(missing)} weights, {missing[0]!r} among them: {remedy}")
    if unknown := sorted(weights.keys() - expected.keys()):
        raise ValueError(f"{folder} has weights of a kind that is not supported, {unknown[0]!r}: use another head")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{folder}: {name} is {tuple(weights[name].shape)}, its config says {shape}: {remedy}")


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """By the names of the speculators format, in fp32."""
    tensors = read_tensors(folder)
    named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items() if name != "t2d"}
    return {name: t.to(torch.int64 if name == "d2t" else torch.float32) for name, t in named.items()}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a head, as they are. Raises OSError naming the remedy where there are none, or they are damaged.

    The pickled files of original checkpoints are read as nothing but tensors.
    """
    path = next((folder / name for name in (WEIGHTS, *ORIGINAL_WEIGHTS) if (folder / name).is_file()), None)
    if path is None:
        raise OSError(f"{folder} holds no {WEIGHTS}: give the folder of a trained head, with its weights")
    try:
        if path.suffix != ".safetensors":
            return torch.load(path, map_location="cpu", weights_only=True)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:  # torch raises any
        raise OSError(f"{path} is damaged or cut short ({error}): download or train it again") from error


def read_json(path: Path) -> dict:
    """The object in a file, an empty one where it holds none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
