"""Files of a trained head: its config.json and its weights, in one file or several."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from smartspec.engine.models.weight_files import weight_files

WEIGHTS = "model.safetensors"
ORIGINAL_WEIGHTS = ("pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REMEDY = "download or train it again"

H = TypeVar("H", bound=nn.Module)


def read_json(path: Path) -> dict:
    """The object in a file, an empty one where it holds none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def has_weight(folder: Path, name: str) -> bool:
    """True where a checkpoint can be read and has a weight of this name."""
    try:
        return any(name in read_file(path) for path in _files(folder))
    except OSError:
        return False


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a head, as they are. Raises OSError naming the remedy where there are none, a
    part is missing, or they are damaged.

    The pickled files of original checkpoints are read as nothing but tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        tensors |= read_file(path)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def _files(folder: Path) -> list[Path]:
    """The files with the weights of a head. Raises OSError where there are none, or a part is
    missing."""
    if found := weight_files(folder, (WEIGHTS, *ORIGINAL_WEIGHTS)):
        return found
    raise OSError(
        f"{folder} holds no {WEIGHTS}: give the folder of a trained head, with its weights"
    )


def read_file(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a file. Raises OSError naming it where it is damaged."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        # torch raises any
        raise OSError(f"{path} is damaged or cut short ({error}): {REMEDY}") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(t, torch.Tensor) for t in tensors.values()
    ):
        raise OSError(f"{path} holds something else than weights by their names: {REMEDY}")
    return {str(name): tensor for name, tensor in tensors.items()}


def in_floats(folder: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A weight in fp32. Raises ValueError where it is no float, or not finite."""
    if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
        raise ValueError(
            f"{folder}: {name} is {tensor.dtype}; heads with quantized weights are not supported: "
            "use one whose weights are bfloat16, float16 or float32"
        )
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{folder}: {name} holds numbers that are not finite: {REMEDY}")
    return tensor.to(torch.float32)


def in_integers(folder: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """An index map in int64. Raises ValueError where it holds no integers."""
    if tensor.dtype not in INTEGERS:
        raise ValueError(f"{folder}: {name} is {tensor.dtype}, it must hold integers: {REMEDY}")
    return tensor.to(torch.int64)


def filled(folder: Path, make: Callable[[], H], weights: dict[str, torch.Tensor]) -> H:
    """The head that make makes, with these weights, which are checked before it takes any memory.

    Raises as check_weights."""
    with torch.device("meta"):
        head = make()
        _take_optional(head, weights)
    check_weights(folder, head, weights)
    head = head.to_empty(device="cpu")
    head.load_state_dict(weights)
    return head.requires_grad_(False).eval()


def _take_optional(head: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Biases that the checkpoint has, whatever its config says: all that it brings is used."""
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear) and module.bias is None and f"{name}.bias" in weights:
            module.bias = nn.Parameter(torch.empty(module.out_features))


def check_weights(folder: Path, head: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Raise where these are not the weights of a head: OSError where some are missing, else
    ValueError."""
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    if missing := sorted(expected.keys() - weights.keys()):
        raise OSError(f"{folder} lacks {len(missing)} weights, {missing[0]!r} among them: {REMEDY}")
    if unknown := sorted(weights.keys() - expected.keys()):
        raise ValueError(
            f"{folder} has weights of a kind that is not supported, {unknown[0]!r}: use another "
            "head"
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(
                f"{folder}: {name} is {tuple(weights[name].shape)}, its config says {shape}: "
                f"{REMEDY}"
            )
