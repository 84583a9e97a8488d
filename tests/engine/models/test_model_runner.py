"""Ragged cached passes give the logits of a plain forward pass, however the text is cut, copied and
rolled back."""

import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import (
    VOCABULARY,
    assert_near,
    plain_logits,
    tiny_llama,
    tiny_mistral,
    tiny_runner,
)

from smartspec.core.blocks import PrefixCopy, Trim
from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import CALL_OVERHEAD, Segment, _partition
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.passes import Interrupted, TargetPasses, measure_passes

# before, it is only a hint
CAN_POPULATE = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (5, 14)


def texts(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]


@pytest.mark.parametrize("tile_tokens", [0, 3, 64])
@pytest.mark.parametrize("make_model", [tiny_llama, tiny_mistral])
@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [5, 2, 3, 0], [7, 6, 1, 4]])
def test_chunks_of_any_size_in_any_slots(make_model, slots, tile_tokens):
    """By torch, and by our kernel with tiles that cut the chunks and tiles that do not."""
    runner = tiny_runner(make_model(), tile_tokens, num_slots=8)
    reference = make_model(attention="eager")
    prompts = texts(11, 30, 2, 17)
    cuts = [[3, 4], [29], [1], [5, 6, 16]]
    positions = [0] * 4
    for step in range(4):
        segments, owners = [], []
        for i, prompt in enumerate(prompts):
            end = cuts[i][step] if step < len(cuts[i]) else len(prompt)
            if end > positions[i]:
                chunk = prompt[positions[i] : end]
                segments.append(
                    Segment(slots[i], positions[i], chunk, num_logits=min(2, len(chunk)))
                )
                owners.append((i, end))
                positions[i] = end
        if not segments:
            break
        logits = runner.forward(segments)
        expected = [
            plain_logits(reference, prompts[i])[end - s.num_logits : end]
            for (i, end), s in zip(owners, segments, strict=True)
        ]
        assert_near(logits, torch.cat(expected))
    assert positions == [len(prompt) for prompt in prompts]


def test_copied_prefix_continues_as_the_original():
    runner = tiny_runner()
    (text,) = texts(25)
    runner.forward([Segment(0, 0, text, 0)])
    runner.apply((PrefixCopy(0, 3, 20), Trim(0, 0)))
    logits = runner.forward([Segment(3, 20, text[20:], 5)])
    assert_near(logits, plain_logits(tiny_llama(attention="eager"), text)[20:])


def large_cache() -> KVCache:
    """Of 3 slots, 16 MiB each."""
    device = torch.device("cpu")
    sizes = {"num_layers": 2, "num_slots": 3, "num_kv_heads": 2, "max_len": 4096, "head_dim": 64}
    return KVCache(**sizes, dtype=torch.float32, device=device)


def test_trim_gives_pages_back_and_keeps_the_prefix():
    cache = large_cache()
    for tensor in (*cache.keys, *cache.values):
        tensor[1] = 1.0
        tensor[2] = 2.0
    before = resident_bytes()
    cache.apply(Trim(1, 1000))
    freed = before - resident_bytes()
    slot_bytes = 2 * 2 * 2 * 4096 * 64 * 4
    assert freed > 0.7 * slot_bytes
    assert all(
        (t[1, :, :1000] == 1.0).all() and (t[2] == 2.0).all() for t in (*cache.keys, *cache.values)
    )


def test_memory_is_there_after_populate_or_write_ones_and_nothing_else_has_changed():
    cache, slot_bytes = large_cache(), 2 * 2 * 2 * 4096 * 64 * 4
    before = resident_bytes()
    cache.write_ones(1, 100, 200)
    cache.populate(1, 10, 4000)
    if CAN_POPULATE:
        assert resident_bytes() - before > 0.9 * slot_bytes
    for tensor in (*cache.keys, *cache.values):
        assert (tensor[1, :, 100:200] == 1.0).all()
        assert tensor.sum() == 2 * 100 * 64, "zeros elsewhere"


def resident_bytes() -> int:
    """Counted page by page: the totals of statm may lag by hundreds of pages for every core."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(
        int(size) for size in re.findall(r"^(?:Rss|Swap): +(\d+) kB$", rollup, re.MULTILINE)
    )


def long_runner() -> ModelRunner:
    return tiny_runner(tiny_llama(max_position_embeddings=1024), max_len=1024)


def test_a_profile_reads_context_that_was_written_and_leaves_no_memory(monkeypatch):
    """Memory that never was is one page of zeros to a CPU: reading it costs next to nothing."""
    runner = long_runner()
    forward, num_unwritten = runner.forward, []

    def checked_forward(segments: list[Segment]) -> torch.Tensor:
        contexts = [
            t[s.slot, :, : s.start]
            for s in segments
            for t in (*runner.cache.keys, *runner.cache.values)
        ]
        num_unwritten.append(sum(int((context == 0.0).sum()) for context in contexts))
        return forward(segments)

    monkeypatch.setattr(runner, "forward", checked_forward)
    samples = measure_passes(
        TargetPasses(runner), max_len=1024, max_batch=4, kv_tokens=4096, max_seconds=float("inf")
    )
    assert max(sample.context_tokens for sample in samples) > 2000
    assert len(num_unwritten) >= 2 * len(samples) and not any(num_unwritten)
    assert all((t == 0.0).all() for t in (*runner.cache.keys, *runner.cache.values))


def test_measuring_ends_when_somebody_waits_and_leaves_nothing():
    runner = long_runner()
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        measure_passes(
            TargetPasses(runner),
            max_len=1024,
            max_batch=2,
            kv_tokens=2048,
            max_seconds=float("inf"),
            interrupted=lambda: next(answers),
        )
    assert next(answers, None) is None
    assert all((t == 0.0).all() for t in (*runner.cache.keys, *runner.cache.values))


def test_neighbours_share_a_call_unless_padding_costs_more_than_it_saves():
    def runs(*shapes: tuple[int, int, int], device: str = "cpu") -> list[tuple[int, int]]:
        """shapes: (slot, context, new tokens)."""
        segments = [
            Segment(slot, context, np.zeros(n, dtype=np.int32), 1) for slot, context, n in shapes
        ]
        return [(a, b) for a, b, _ in _partition(segments, CALL_OVERHEAD[device])]

    assert runs(*((slot, 200, 1) for slot in range(5))) == [(0, 5)]
    assert runs((0, 200, 1), (2, 200, 1)) == [(0, 1), (1, 2)]
    assert runs((0, 50, 1), (1, 6000, 1)) == [(0, 1), (1, 2)]
    assert runs((0, 100, 256), (1, 100, 1)) == [(0, 1), (1, 2)]
    assert runs() == []
    drafts = [(slot, 1000, 1 + 4 * (slot % 2)) for slot in range(6)]
    assert len(runs(*drafts)) == 6 and runs(*drafts, device="cuda") == [(0, 6)]
    assert runs((0, 100, 512), (1, 1000, 1), device="cuda") == [(0, 1), (1, 2)]
