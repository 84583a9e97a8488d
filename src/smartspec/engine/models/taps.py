"""The output of chosen layers of a model, read in a pass that runs anyway.

Tap i is what the first i layers have computed; one more than there are layers is what the output
embedding reads, after the final norm.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from transformers.utils import ModelOutput


def check_taps(model: nn.Module, taps: tuple[int, ...]) -> None:
    """Raise ValueError where a tap is none of the model's layers."""
    num_layers = len(decoder_layers(model))
    if wrong := [tap for tap in taps if not 1 <= tap <= num_layers + 1]:
        raise ValueError(
            f"tap layers {wrong} do not exist: the target has {num_layers} layers (taps 1 to "
            f"{num_layers + 1})"
        )


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The model's layers in order. Raises ValueError where they are not to be told from its other
    modules."""
    num_layers = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == num_layers]
    if not lists:
        raise ValueError(
            f"{type(model).__name__} has no list of its {num_layers} layers: heads cannot be used "
            "with it"
        )
    return lists[0]


@contextmanager
def tapped(model: nn.Module, taps: tuple[int, ...]) -> Iterator[list[torch.Tensor]]:
    """A pass inside the block appends what each of taps (ascending) is, [B, N, hidden_size]."""
    modules, found = [*decoder_layers(model), model.get_decoder()], []

    def keep(module: nn.Module, args: object, output: torch.Tensor | tuple | ModelOutput) -> None:
        found.append(output if isinstance(output, torch.Tensor) else output[0])

    with ExitStack() as hooks:
        for tap in taps:
            hooks.enter_context(modules[tap - 1].register_forward_hook(keep))
        yield found
