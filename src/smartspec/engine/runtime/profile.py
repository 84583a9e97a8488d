"""The cost model's start: time real passes of every size that matters, in seconds, and keep the result on disk.

The cache file holds a key of everything the times depend on, and its name is the key's hash. A file that is corrupt or
of another machine, model or software is not used: the reason is reported, and the profile measured again.
"""

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import numpy as np
import torch
import transformers

from smartspec.control.latency.model import LatencyModel, ProfileSample
from smartspec.core.blocks import Trim
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.cache_folder import cache_folder
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.huge_pages import collapse_pages
from smartspec.engine.sampling.verification import verify

MAX_PROFILE_SECONDS = 16.0
DRAFT_SHARE = 0.2  # of that for all draft models: their passes are small
# The first pass of a size may be slower (kernels are generated, memory is new): no size is timed only once.
MIN_REPETITIONS, MAX_REPETITIONS = 2, 3
MAX_POINT_SECONDS = 0.4  # spent on one size, once it has been repeated
METHOD = 3  # changes with what is measured, so that older files are measured again
LONGEST_VERIFICATION = 16  # new tokens per row; a pass with more stands for prefill


@dataclass(frozen=True)
class Profile:
    """Measured passes of the target and of each draft model."""

    target: tuple[ProfileSample, ...]
    drafts: tuple[tuple[ProfileSample, ...], ...] = ()


def profiled_latency(
    target: ModelRunner,
    drafts: tuple[ModelRunner, ...],
    *,
    max_batch: int,
    kv_tokens: int,
    report: Callable[[str], None],
) -> LatencyModel:
    """The latency model of these models on this machine: from the cache, or measured in at most 20 seconds. drafts: the
    draft models."""
    key = profile_key(target, drafts, max_batch)
    path = _cache_path(key)
    try:
        return _load(path, key)
    except FileNotFoundError:
        if reason := _why_another_does_not_fit(path.parent, key):
            report(reason)
    except (ValueError, RecursionError, OSError) as error:
        report(f"profile {path.name} is unusable ({error})")
    report("measuring the cost of a step, at most 20 seconds, once per model and machine")
    profile = measure_profile(target, drafts, max_batch=max_batch, kv_tokens=kv_tokens)
    latency = LatencyModel.fit(list(profile.target), list(map(list, profile.drafts)))
    try:
        _store(path, key, latency)
    except OSError as error:
        report(f"the profile could not be stored ({error}); the next start will measure again")
    return latency


def measure_profile(target: ModelRunner, drafts: tuple[ModelRunner, ...], *, max_batch: int, kv_tokens: int) -> Profile:
    """Time passes of all models, in huge pages, as a server's soon are (see huge_pages). Their caches must not be in
    use: they are overwritten and emptied."""
    for _ in collapse_pages():
        pass
    for_drafts = DRAFT_SHARE * MAX_PROFILE_SECONDS if drafts else 0.0
    return Profile(
        measure_passes(target, max_batch, kv_tokens, MAX_PROFILE_SECONDS - for_drafts),
        tuple(measure_passes(draft, max_batch, kv_tokens, for_drafts / len(drafts)) for draft in drafts),
    )


def measure_passes(
    runner: ModelRunner, max_batch: int, kv_tokens: int, max_seconds: float
) -> tuple[ProfileSample, ...]:
    """Median of up to three repetitions for a grid of passes, most telling sizes first, until max_seconds are over.

    A pass is timed as the executor does it: with what it emits verified, over a cache that has been written (memory
    that never was is one page of zeros to a CPU, and reads 4 rows of context in a tenth less time).
    """
    began = time.perf_counter()
    samples = []
    num_written = np.zeros(max_batch, dtype=np.int64)
    for rows, num_new, context in _grid(max_batch, runner.max_len, kv_tokens):
        remaining = max_seconds - (time.perf_counter() - began)
        if samples and remaining < 2 * min(samples[-1].seconds, MAX_POINT_SECONDS):
            continue
        for slot in np.flatnonzero(num_written[:rows] < context):
            runner.cache.write_ones(slot, num_written[slot], context)
            num_written[slot] = context
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
    token_ids = np.arange(num_new, dtype=np.int32) % runner.loaded.vocab_size
    segments = [Segment(slot, context, token_ids, _num_logits(num_new)) for slot in range(rows)]
    requests = [Request(slot, token_ids, SamplingParams(temperature=0.0), seed=0) for slot in range(rows)]
    drafts = [token_ids[1 : _num_logits(num_new)]] * rows
    durations = []
    while len(durations) < MIN_REPETITIONS or (len(durations) < MAX_REPETITIONS and sum(durations) < MAX_POINT_SECONDS):
        began = time.perf_counter()
        verify(runner.forward(segments), requests, drafts, [None] * rows)
        durations.append(time.perf_counter() - began)
    return median_low(durations)


def _num_logits(num_new: int) -> int:
    """A prefill chunk wants one row of logits, a verification all of them."""
    return num_new if num_new <= LONGEST_VERIFICATION else 1


def profile_key(target: ModelRunner, drafts: tuple[ModelRunner, ...], max_batch: int) -> dict:
    """Everything the times depend on, by name; JSON-able."""
    return {
        "model": _model_key(target),
        "draft models": list(map(_model_key, drafts)),
        "batch": max_batch,
        "threads": torch.get_num_threads(),
        "device": _device_name(target.device),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "tile": target.max_tile_tokens,
        "method": METHOD,
    }


def _cache_path(key: dict) -> Path:
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return cache_folder() / "profiles" / f"{digest}.json"


def _load(path: Path, key: dict) -> LatencyModel:
    """The latency model in a cache file. ValueError or RecursionError says why it is not the one that is needed."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or not isinstance(data.get("key"), dict):
        raise ValueError("it does not say what it was measured on")
    if data["key"] != key:
        raise ValueError(_difference(data["key"], key))
    return LatencyModel.from_dict(data.get("cost_model"))


def _store(path: Path, key: dict, latency: LatencyModel) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".storing-") as folder:
        made = Path(folder) / path.name
        made.write_text(json.dumps({"key": key, "cost_model": latency.to_dict()}))
        made.replace(path)


def _why_another_does_not_fit(folder: Path, key: dict) -> str | None:
    """What is different about the newest profile there is of the same models, if any."""
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            other = json.loads(path.read_text())["key"]
            if other["model"] == key["model"] and other["draft models"] == key["draft models"]:
                return f"profile {path.name} does not fit ({_difference(other, key)})"
        except (ValueError, RecursionError, OSError, KeyError, TypeError):
            continue  # whatever it is, it is not of these models
    return None


def _difference(there: dict, here: dict) -> str:
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    return ", ".join(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in names)


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
