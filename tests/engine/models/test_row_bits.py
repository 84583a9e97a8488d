"""A row's logits have the same bits in every pass: what makes a sampled text independent of drafts
and neighbours.

One text, its logits as one pass gives them, and the same text in chunks, token by token, after
drafts that were rolled back, beside neighbours, and as the path of draft trees. Kernels for other
processors are built from the same source where the compiler can.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from compiled import need_kernels, need_processor
from default_model import load_once
from fused_models import FORMS, VOCABULARY, fused_model, runner_of

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.kernels.cpu.ragged_attention import LIBRARY
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.fused_pass import fused_pass
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.sampling.inverse_cdf import mass_of, sample_from_probs
from smartspec.engine.sampling.sampler import filtered_probs

Rows = tuple[list[int], torch.Tensor]


def chunk(text: np.ndarray, slot: int, start: int, end: int) -> Segment:
    return Segment(slot, start, text[start:end], end - start)


def in_chunks(runner: ModelRunner, text: np.ndarray, random: np.random.Generator) -> Iterator[Rows]:
    """Of any size, beside a neighbour of any length."""
    start = 0
    while start < len(text):
        end = min(len(text), start + int(random.integers(1, 60)))
        neighbour = chunk(text[::-1].copy(), 3, 0, int(random.integers(1, 90)))
        yield (
            list(range(start, end)),
            runner.forward([chunk(text, 1, start, end), neighbour])[: end - start],
        )
        start = end


def token_by_token(
    runner: ModelRunner, text: np.ndarray, random: np.random.Generator
) -> Iterator[Rows]:
    first = len(text) - 14
    runner.forward([chunk(text, 1, 0, first)])
    for row in range(first, len(text)):
        yield [row], runner.forward([chunk(text, 1, row, row + 1)])


def as_drafts(runner: ModelRunner, text: np.ndarray, random: np.random.Generator) -> Iterator[Rows]:
    """Of which some tokens are right; what is after them is rolled back."""
    start = len(text) // 3
    runner.forward([chunk(text, 2, 0, start)])
    while start < len(text):
        right = min(int(random.integers(0, 5)), len(text) - start - 1)
        wrong = text[random.integers(0, len(text), int(random.integers(0, 9)))]
        tokens = np.concatenate([text[start : start + 1 + right], wrong])
        yield (
            list(range(start, start + 1 + right)),
            runner.forward([Segment(2, start, tokens, len(tokens))])[: 1 + right],
        )
        start += 1 + right


def as_trees(runner: ModelRunner, text: np.ndarray, random: np.random.Generator) -> Iterator[Rows]:
    """With a right path among other nodes, which is kept."""
    start = len(text) // 3
    runner.forward([chunk(text, 2, 0, start)])
    while start < len(text):
        num_nodes = int(random.integers(8, 50))
        right = np.sort(random.choice(num_nodes, min(6, len(text) - start - 1), replace=False))
        parents = np.array([random.integers(-1, node) for node in range(num_nodes)])
        tokens = text[random.integers(0, len(text), num_nodes)]
        parents[right], tokens[right] = (
            np.concatenate([[-1], right[:-1]])[: len(right)],
            text[start + 1 :][: len(right)],
        )
        mask = tree_mask(np.concatenate([[-1], parents + 1]), start)
        segment = Segment(
            2, start, np.concatenate([text[start : start + 1], tokens]), 1 + num_nodes, mask
        )
        logits = runner.forward([segment])
        yield list(range(start, start + 1 + len(right))), logits[[0, *(right + 1).tolist()]]
        runner.keep_path(2, start + 1, tuple(right.tolist()))
        start += 1 + len(right)


GROUPINGS = (in_chunks, token_by_token, as_drafts, as_trees)


def rows_that_differ(runner: ModelRunner, text: np.ndarray) -> dict[str, list[int]]:
    """Numbers of the text's tokens whose logits have other bits than in one pass, by grouping."""
    expected = runner.forward([chunk(text, 0, 0, len(text))]).clone()
    found = {}
    for grouping in GROUPINGS:
        parts = list(grouping(runner, text, np.random.default_rng(0)))
        assert len(parts) > 1
        found[grouping.__name__] = [
            row
            for rows, logits in parts
            for row, of_row in zip(rows, logits, strict=True)
            if not torch.equal(of_row, expected[row])
        ]
    return found


def tiny_runner(
    name: str, head_dim: int, window: int | None, changes: dict, in_layers: bool
) -> ModelRunner:
    """Of a model whose layers run in one call each, or part by part."""
    sizes = {"head_dim": head_dim, "sliding_window": window, "max_position_embeddings": 512}
    model = fused_model(name, **sizes | changes)
    if in_layers:
        assert fuse_layers(model) == 2
    return runner_of(model, fused_pass(model), max_len=400)


def check_tiny_models() -> None:
    """Heads of whole vectors and of none, norms of heads, windows, every form of a layer, texts
    over several spans of keys."""
    text = np.random.default_rng(1).integers(0, VOCABULARY, 290, dtype=np.int32)
    models = [("llama", 64, None, {}), ("qwen3", 40, None, {}), ("mistral", 64, 50, {})]
    cases = [(*model, in_layers, text) for model in models for in_layers in (True, False)]
    cases += [(name, 24, 50, changes, True, text[:140]) for name, changes in FORMS.values()]
    for *model, in_layers, of_model in cases:
        found = rows_that_differ(tiny_runner(*model, in_layers), of_model)
        assert found == {grouping.__name__: [] for grouping in GROUPINGS}, (*model, in_layers)


def test_a_row_has_the_same_bits_in_every_pass_of_the_real_model():
    need_kernels(LIBRARY)
    loaded = load_once(DEFAULT_MODEL, dtype="auto", device="cpu")
    runner = ModelRunner(loaded, num_slots=4, max_len=256)
    # longer than a span of keys
    text = np.random.default_rng(0).integers(0, loaded.vocab_size, 140, dtype=np.int32)
    assert rows_that_differ(runner, text) == {grouping.__name__: [] for grouping in GROUPINGS}


@pytest.mark.parametrize(
    "machine", [None, "haswell", pytest.param("x86-64", marks=pytest.mark.slow)]
)
def test_a_row_has_the_same_bits_in_every_pass_of_tiny_models(machine):
    """Built for this processor, and in a process of its own for AVX2 and for no instructions that
    we name."""
    need_kernels(LIBRARY)
    if machine is None:
        check_tiny_models()
        return
    need_processor(machine)
    code = "import test_row_bits; test_row_bits.check_tiny_models()"
    paths = os.pathsep.join([*sys.path, os.path.dirname(__file__)])
    environment = os.environ | {
        "CC": f"gcc -march={machine}",
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("scale", [0.5, 3.0, 9.0])
def test_a_sampled_row_is_the_same_alone_and_in_a_batch(scale):
    """Distributions and tokens, with every mixture of filters beside it."""
    random = np.random.default_rng(0)
    logits = scale * torch.randn(12, 50_000, generator=torch.Generator().manual_seed(1))
    options = [
        np.full(12, 0.8),
        random.choice([0, 3, 50, 1000], 12),
        random.choice([1.0, 0.5, 0.95], 12),
        random.choice([0.0, 0.01, 0.3], 12),
    ]
    u = random.random(12)
    expected = filtered_probs(logits, *options)
    tokens = sample_from_probs(expected, u)
    for size in (1, 2, 5):
        for first in range(0, 12 - size + 1, size):
            some = slice(first, first + size)
            probs = filtered_probs(logits[some], *(option[some] for option in options))
            assert torch.equal(probs, expected[some])
            assert torch.equal(sample_from_probs(probs, u[some]), tokens[some])


def test_the_mass_of_a_row_is_the_same_alone_and_in_a_batch():
    """Of peaked rows, whose sums are rounded; by several threads torch itself adds up a row that is
    alone in parts."""
    probs = (6 * torch.randn(20, 60_000, generator=torch.Generator().manual_seed(0))).softmax(
        dim=-1
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together, alone = mass_of(probs), torch.cat([mass_of(row[None]) for row in probs])
        assert torch.equal(alone, together)
        by_torch = torch.cat(
            [row[None].sum(dim=-1, keepdim=True, dtype=torch.float64) for row in probs]
        )
        torch.testing.assert_close(together, by_torch, rtol=1e-14, atol=0)
    finally:
        torch.set_num_threads(threads)
