"""A model's masks are told without running them on its device, and without positions that they do
not have."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import tiny_llama, tiny_mistral
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from smartspec.engine.attention.probe import _agree, _noted_mask, probe

CAUSAL, WINDOW = (
    masking_utils.causal_mask_function,
    masking_utils.sliding_window_causal_mask_function,
)
POSITIONS = torch.tensor([[4, 5, 6, 90]])


class DeviceAssert(BaseException):
    """Nothing catches it, as nothing saves a process from an assertion of a device."""


class Device(TorchDispatchMode):
    """A device that cannot raise an IndexError."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index.Tensor:
            for size, index in zip(args[0].shape, args[1], strict=False):
                if (
                    index is not None
                    and index.numel()
                    and not -size <= int(index.min()) <= int(index.max()) < size
                ):
                    raise DeviceAssert(f"index {int(index.max())} of {size}")
        return function(*args, **(kwargs or {}))


def test_the_device_of_these_tests_asserts():
    with Device(), pytest.raises(DeviceAssert, match="index 9 of 3"):
        torch.zeros(3)[torch.tensor([0, 9])]


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_mistral])
def test_a_pass_whose_positions_jump_asks_no_mask_for_others(make_model):
    """transformers looks positions of such a pass up in a tensor of its four tokens."""
    with Device():
        _, calls = probe(make_model(), last_position=100)
    assert len(calls) == 2 and not any(call.has_known_mask for call in calls)
    assert all(call.has_known_mask for call in probe(make_model())[1])


def looked_up(positions: torch.Tensor) -> dict[str, Callable]:
    """Masks of transformers' that read these tensors, and one that only counts with them."""
    chunked = masking_utils.chunked_causal_mask_function
    return {
        "packed": masking_utils.remap_positions_for_packed_sequence(CAUSAL, positions),
        "sequences": masking_utils.and_masks(
            CAUSAL, masking_utils.packed_sequence_mask_function(positions)
        ),
        "blocks": masking_utils.or_masks(CAUSAL, masking_utils.blockwise_overlay(positions)),
        "padded": masking_utils.and_masks(
            CAUSAL, masking_utils.padding_mask_function(positions > 0)
        ),
        "chunked": chunked(4, positions[0]),
        "counted": lambda batch, head, query, key: (key <= query) & (positions.sum() > 0),
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", looked_up(POSITIONS))
def test_masks_that_read_tensors_are_not_known_and_do_not_run(kind, device):
    """On meta, which computes nothing, reading an answer raises NotImplementedError."""
    mask = looked_up(POSITIONS.to(device))[kind]
    with Device():
        assert not _agree(mask, CAUSAL) and not _agree(mask, WINDOW(9), 9)


def test_a_mask_function_is_given_tensors_of_the_cpu_whatever_the_model_is_on():
    devices = []

    def noting(*indices: torch.Tensor) -> torch.Tensor:
        devices.extend(index.device.type for index in indices)
        return CAUSAL(*indices)

    mask = _noted_mask(1, 4, 4, mask_function=noting, device=torch.device("meta"))
    assert mask.is_known and mask.device.type == "meta" and devices == ["cpu"] * 4


def by_hand(batch, head, query, key):
    return torch.where(key > query, False, (query - key) < torch.tensor([3, 9])[1])


class Owner:
    window = 9

    def mask(self, batch, head, query, key):
        return query.new_ones((), dtype=torch.bool) & (key <= query) & (key + self.window > query)


@pytest.mark.parametrize("mask", [by_hand, Owner().mask, WINDOW(9)])
def test_masks_are_known_by_what_they_show_however_they_are_written(mask):
    assert _agree(mask, WINDOW(9), 9)
    assert (
        not _agree(mask, CAUSAL)
        and not _agree(mask, WINDOW(8), 8)
        and not _agree(mask, WINDOW(10), 10)
    )
    noted = _noted_mask(1, 4, 4, mask_function=mask, local_size=9)
    assert (noted.is_known, noted.window) == (True, 9)
