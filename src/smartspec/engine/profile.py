"""The cost model's start: time real passes of every size that matters, in seconds, and keep the result on disk.

The cache file's name is a key of everything the times depend on; a file that cannot be read is measured again, with
the reason reported.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from smartspec.control.latency import LatencyModel, ProfileSample
from smartspec.core.blocks import Trim
from smartspec.engine.attention import Segment
from smartspec.engine.default_model import cache_folder
from smartspec.engine.model_runner import ModelRunner

MAX_PROFILE_SECONDS = 16.0
REPETITIONS = 3
MAX_POINT_SECONDS = 0.4  # a pass as long as this is not repeated: it is steady enough
LONGEST_VERIFICATION = 16  # new tokens per row; a pass with more stands for prefill


@dataclass(frozen=True)
class Profile:
    """Measured passes of the target and of the draft model (none without one)."""

    target: tuple[ProfileSample, ...]
    draft: tuple[ProfileSample, ...]


def profiled_latency(
    target: ModelRunner, draft: ModelRunner | None, *, max_batch: int, kv_tokens: int, report: Callable[[str], None]
) -> LatencyModel:
    """The latency model of these models on this machine: from the cache, or measured in at most 20 seconds."""
    path = _cache_path(target, draft, max_batch)
    try:
        if path.is_file():
            return LatencyModel.from_dict(json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        report(f"profile {path.name} is unusable ({error}); measuring again")
    report("measuring the cost of a step, at most 20 seconds, once per model and machine")
    profile = measure_profile(target, draft, max_batch=max_batch, kv_tokens=kv_tokens)
    latency = LatencyModel.fit(list(profile.target), list(profile.draft))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(latency.to_dict()))
    temporary.replace(path)
    return latency


def measure_profile(target: ModelRunner, draft: ModelRunner | None, *, max_batch: int, kv_tokens: int) -> Profile:
    """Time passes of both models. Their caches must not be in use: they are overwritten and emptied."""
    if draft is None:
        return Profile(measure_passes(target, max_batch, kv_tokens, MAX_PROFILE_SECONDS), ())
    # A draft pass is small; a fifth of the time is enough for it.
    return Profile(
        measure_passes(target, max_batch, kv_tokens, 0.8 * MAX_PROFILE_SECONDS),
        measure_passes(draft, max_batch, kv_tokens, 0.2 * MAX_PROFILE_SECONDS),
    )


def measure_passes(
    runner: ModelRunner, max_batch: int, kv_tokens: int, max_seconds: float
) -> tuple[ProfileSample, ...]:
    """Best of up to three repetitions for a grid of passes, the most telling sizes first, until max_seconds are over."""
    began = time.perf_counter()
    samples = []
    for rows, num_new, context in _grid(max_batch, runner.max_len, kv_tokens):
        remaining = max_seconds - (time.perf_counter() - began)
        if samples and remaining < 2 * min(samples[-1].seconds, MAX_POINT_SECONDS):
            continue
        seconds = _time_pass(runner, rows, num_new, context)
        scored = rows * _num_logits(num_new)
        samples.append(ProfileSample(rows * num_new, rows * (context + num_new), rows, seconds, scored))
    for slot in range(max_batch):
        runner.apply((Trim(slot, 0),))
    return tuple(samples)


def _grid(max_batch: int, max_len: int, kv_tokens: int) -> list[tuple[int, int, int]]:
    """(rows, new tokens per row, context per row) of the passes to measure: decoding, drafts, contexts, prefill."""
    batches = [rows for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rows < max_batch] + [max_batch]
    points = [(rows, num_new, 128) for num_new in (1, 4) for rows in batches]
    points += [(rows, num_new, context) for context in (512, 1536) for num_new in (1, 4) for rows in (1, 4, 16)]
    points += [(1, num_new, 0) for num_new in (32, 64, 128, 256, 512)] + [(1, 256, 512), (1, 256, 1536), (1, 512, 512)]
    points += [(rows, num_new, 128) for num_new in (6, 2, 11, 3, 8) for rows in batches if rows * num_new <= 256]
    return [
        (rows, num_new, context)
        for rows, num_new, context in points
        if rows <= max_batch and context + num_new < max_len and rows * (context + num_new) <= kv_tokens
    ]


def _time_pass(runner: ModelRunner, rows: int, num_new: int, context: int) -> float:
    token_ids = np.arange(num_new, dtype=np.int32) + 5
    segments = [Segment(slot, context, token_ids, _num_logits(num_new)) for slot in range(rows)]
    durations = []
    while len(durations) < REPETITIONS and sum(durations) < MAX_POINT_SECONDS:
        began = time.perf_counter()
        runner.forward(segments).argmax(dim=-1).cpu()
        durations.append(time.perf_counter() - began)
    return min(durations)


def _num_logits(num_new: int) -> int:
    """A prefill chunk wants one row of logits, a verification all of them."""
    return num_new if num_new <= LONGEST_VERIFICATION else 1


def _cache_path(target: ModelRunner, draft: ModelRunner | None, max_batch: int) -> Path:
    parts = [_model_key(target), _model_key(draft), max_batch, torch.get_num_threads(), _device_name(target.device)]
    parts += [torch.__version__, transformers.__version__, target.max_tile_tokens]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return cache_folder() / "profiles" / f"{key}.json"


def _model_key(runner: ModelRunner | None) -> list | None:
    if runner is None:
        return None
    loaded = runner.loaded
    shape = [loaded.num_layers, loaded.num_kv_heads, loaded.head_dim, loaded.vocab_size]
    return [loaded.name, loaded.weight_bytes, str(loaded.dtype), *shape]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} x{os.cpu_count()}"
