"""A model's calls to the attention interface, found by running it once with a stand-in that only
takes notes.

What a layer may see is said by transformers in the mask alone (a model may or may not also pass its
sliding window as an option), so the stand-in has masks of its own, which know the window they were
made for.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

PROBE_NAME = "smartspec_probe"
# A pass over tokens 0 at these positions; the last one may be elsewhere, see `probe`.
PROBE_POSITIONS = (4, 5, 6, 7)
FAR = 1 << 20  # positions at which it is checked what a mask shows


@dataclass(frozen=True)
class AttentionCall:
    """A call of the attention interface."""

    module: nn.Module
    query: torch.Tensor  # [1, num_heads, N, head_dim]
    key: torch.Tensor  # [1, num_kv_heads, N, head_dim]
    value: torch.Tensor  # as key
    mask: torch.Tensor | None  # what the model passed as mask; None where it made none
    options: dict[str, object]  # the keyword arguments

    @property
    def has_known_mask(self) -> bool:
        """True if the mask is plain causal attention, possibly in a sliding window."""
        return self.mask is None or getattr(self.mask, "is_known", False)

    @property
    def window(self) -> int | None:
        """The layer's sliding window in tokens, as its mask has it."""
        return getattr(self.mask, "window", None)


def probe(
    model: nn.Module, last_position: int = PROBE_POSITIONS[-1]
) -> tuple[torch.Tensor, list[AttentionCall]]:
    """Logits [4, vocabulary] and attention calls of one pass in which no token attends to another.

    last_position: where the last of the tokens is. The others must not be changed by it. May raise
    whatever the model raises.
    """
    positions = torch.tensor([[*PROBE_POSITIONS[:-1], last_position]], device=model.device)
    with torch.inference_mode(), recorded_attention(model.config) as calls:
        output = model(
            input_ids=torch.zeros_like(positions),
            position_ids=positions,
            use_cache=False,
            attention_plan=None,
        )
    return output.logits[0], calls


@contextmanager
def recorded_attention(config: PretrainedConfig) -> Iterator[list[AttentionCall]]:
    """Inside the block, modules with this config record their attention calls; each query head
    returns its value."""
    calls: list[AttentionCall] = []

    def record(module, query, key, value, attention_mask, **options):
        calls.append(AttentionCall(module, query, key, value, attention_mask, options))
        output = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return output.transpose(1, 2).contiguous(), None

    before = config._attn_implementation
    # Of the class, not of one instance: some models have an interface of their own.
    AttentionInterface.register(PROBE_NAME, record)
    AttentionMaskInterface.register(PROBE_NAME, _noted_mask)
    config._attn_implementation = PROBE_NAME
    try:
        yield calls
    finally:
        config._attn_implementation = before
        AttentionInterface.register(PROBE_NAME, _no_attention)


def _no_attention(*args: object, **kwargs: object) -> None:
    raise RuntimeError("attention is only recorded inside recorded_attention")


def _noted_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Callable,
    dtype=torch.float32,
    **kwargs: object,
) -> torch.Tensor:
    """A mask of transformers' mask interface that hides nothing, with the arguments it was made
    with as attributes."""
    mask = torch.zeros(batch_size, 1, q_length, kv_length, dtype=dtype, device=kwargs.get("device"))
    size = kwargs.get("local_size")
    mask.window, mask.is_known = None, _agree(mask_function, causal_mask_function)
    if not mask.is_known and size is not None:
        mask.window, mask.is_known = (
            size,
            _agree(mask_function, sliding_window_causal_mask_function(size), size),
        )
    return mask


def _agree(mask_function: Callable, expected: Callable, size: int = 1) -> bool:
    """True if both show the same keys, around multiples of size and far away; decided on the CPU.
    Not where the function reads tensors of its own: a mask that is looked up is of this pass
    alone."""
    edges = {0, 1, *(size * i + j for i in (1, 2, 3) for j in (-1, 0, 1)), FAR}
    queries = torch.tensor(sorted(edges))[:, None]
    distances = torch.tensor(sorted({-1, *edges, *(2**i for i in range(20))}))[None]
    arguments = *torch.zeros(2, dtype=torch.long), queries, queries - distances
    try:
        with _OnlyFrom(arguments):
            shown = mask_function(*arguments)
    except (IndexError, RuntimeError):
        return False
    return bool((shown == expected(*arguments))[arguments[3] >= 0].all())


class _OnlyFrom(TorchFunctionMode):
    """Inside the block torch computes with these tensors and what is made of them on the CPU. An
    operation on any other raises RuntimeError and does not run: a position that such a tensor does
    not have would be an IndexError on a CPU, but on CUDA an assertion of the device, after which
    the process cannot use it any more."""

    def __init__(self, tensors: Iterable[torch.Tensor]):
        super().__init__()
        # kept, so that no other gets the id of one
        self._known = {id(tensor): tensor for tensor in tensors}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and id(value) not in self._known:
                raise RuntimeError(
                    f"{getattr(function, '__name__', function)} of a tensor that the mask brought "
                    "along"
                )
        result = function(*args, **(kwargs or {}))
        made = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        self._known |= {id(tensor): tensor for tensor in made if tensor.device.type == "cpu"}
        return result
