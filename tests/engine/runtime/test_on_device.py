"""What runs on a device waits for it only where an answer is read: passes on torch's meta device,
which raises where a tensor's values are asked for, and a count of what is copied."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tiny_models import tiny_llama, tiny_mistral, tiny_runner
from torch.utils._python_dispatch import TorchDispatchMode

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention import ragged
from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.sparse_window import SparseWindow
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.drafting.chains import draft_chains
from smartspec.engine.models.load import _own_parameters
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.passes import TargetPasses

META = torch.device("meta")


@pytest.fixture(autouse=True)
def meta_is_a_device(monkeypatch):
    monkeypatch.setitem(ragged.CALL_OVERHEAD, "meta", ragged.CALL_OVERHEAD["cuda"])


def runner_on_meta(model: torch.nn.Module | None = None, **options) -> ModelRunner:
    return tiny_runner((tiny_llama() if model is None else model).to(META), max_len=64, **options)


def tokens(num: int) -> np.ndarray:
    return np.arange(num, dtype=np.int32)


def of_all_kinds() -> list[Segment]:
    """A prompt, a tree, a chain, and a token that sees sinks and a window."""
    tree = tree_mask(np.array([-1, 0, 0, 1]), 20)
    return [
        Segment(0, 0, tokens(9), 0),
        Segment(1, 20, tokens(4), 4, tree),
        Segment(2, 12, tokens(3), 3),
        Segment(3, 40, tokens(1), 1, sparse=SparseWindow(2, 8)),
    ]


class Operations(TorchDispatchMode):
    """Notes the names of those that run inside, and between which devices tensors are copied."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []
        self.num_copies = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.names.append(function.overloadpacket.__name__)
        if self.names[-1] in ("to", "_to_copy"):
            self.num_copies += args[0].device != result.device
        return result


@contextmanager
def counted() -> Iterator[Operations]:
    with Operations() as operations:
        yield operations


@pytest.mark.parametrize("model", [tiny_llama, tiny_mistral])
def test_a_pass_reads_nothing_back(model):
    runner = runner_on_meta(model(), taps=(1, 2))
    logits = runner.forward(of_all_kinds())
    assert logits.shape == (8, 61) and logits.device == META
    assert [rows.shape for rows in runner.features] == [(9, 64), (4, 64), (3, 64), (1, 64)]


def test_a_pass_that_is_timed_is_over_when_it_returns():
    """Its result is read, as in a step; a device that is still computing would make every pass look
    short."""
    run = TargetPasses(runner_on_meta()).profile_pass(2, 1, 20)
    with pytest.raises(NotImplementedError, match="out of meta tensor"):
        run()


def test_a_chain_reads_as_often_for_many_requests_as_for_one():
    logits = torch.randn(8, 61, generator=torch.Generator().manual_seed(0))
    reads = []
    for num in (1, 8):
        requests = [
            Request(i, tokens(4), SamplingParams(temperature=1.0), seed=i) for i in range(num)
        ]
        with counted() as operations:
            made = draft_chains(
                requests, np.full(num, 2), None, lambda rows, newest, depth: logits[rows]
            )
        reads.append(operations.names.count("_local_scalar_dense"))
        for draft in made:
            assert draft.confidence == pytest.approx(draft.probs.amax(dim=-1).numpy())
    assert reads[0] == reads[1]


def test_weights_that_lie_on_a_device_are_not_copied_there_once_more():
    there, mapped = tiny_llama().to(META), tiny_llama()
    with counted() as operations:
        _own_parameters(there)
    assert "clone" not in operations.names
    with counted() as operations:
        _own_parameters(mapped)
    assert "clone" in operations.names


def test_kv_that_does_not_fit_into_a_device_is_said_with_the_remedy(monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    sizes = {
        "num_layers": 32,
        "num_slots": 64,
        "num_kv_heads": 8,
        "max_len": 131072,
        "head_dim": 128,
    }
    with pytest.raises(
        ValueError, match=r"64 requests of 131072 tokens in 32 layers takes 1099\.5 GB, which meta"
    ):
        KVCache(**sizes, dtype=torch.bfloat16, device=META)
