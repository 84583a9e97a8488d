"""The cost model's start: time real passes of every size that matters, in seconds, and keep the
result on disk.

The cache file holds a key of everything the times depend on, and its name is the key's hash. A file
that is corrupt or of another machine, model or software is not used: the reason is reported, and
the profile measured again. One that was measured while other processes had the cores is used as
long as they have them; a server that idles measures again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import transformers

from smartspec.control.latency.model import LatencyModel
from smartspec.core.processor import processor_name
from smartspec.engine.cache_folder import cache_folder, write_file
from smartspec.engine.runtime.passes import Interrupted, Profile, Profiled, measure_profile

# changes with what is measured and with our kernels, so that older files are measured again
METHOD = 7
MAX_WAITING = 0.1  # share of the time, see Profile: above it the machine was busy
MIN_DRIFT, MAX_DRIFT = 1 / 1.5, 1.5  # what first steps took over what the profile says
IDLE_PERCENT = 50.0  # of the cores in use for IDLE_CHECK seconds: below it the machine is not busy
IDLE_CHECK = 0.2  # the load average of a minute would call a machine busy for long after a start
AGAIN = "measured again when neither the machine nor the server has much to do"


class MeasuredOnBusyMachine(ValueError):
    """A profile could be better now."""


def profiled_latency(models: Profiled, report: Callable[[str], None]) -> LatencyModel:
    """The latency model of these models on this machine: from the cache, or measured in at most 20
    seconds."""
    key = profile_key(models)
    path = cache_path(key)
    try:
        return _load(path, key)
    except FileNotFoundError:
        if reason := _why_another_does_not_fit(path.parent, key):
            report(reason)
    except (ValueError, RecursionError, OSError) as error:
        report(f"profile {path.name} is unusable ({error})")
    report("measuring the cost of a step, at most 20 seconds, once per model and machine")
    return _kept(measure_profile(models), path, key, report)


def could_be_better(models: Profiled) -> bool:
    """True where their profile is of a busy machine, which is idle now."""
    key = profile_key(models)
    try:
        _load(cache_path(key), key)
    except MeasuredOnBusyMachine:
        return True
    except (ValueError, RecursionError, OSError):
        pass  # gone or spoiled meanwhile: a matter of the next start
    return False


def measured_again(
    models: Profiled, interrupted: Callable[[], bool], report: Callable[[str], None]
) -> LatencyModel | None:
    """A new profile of these models, in place of the stored one; None if a request came meanwhile
    (interrupted). Their caches must not be in use: they are overwritten and emptied."""
    try:
        profile = measure_profile(models, interrupted)
    except Interrupted:
        return None
    report("the machine is idle: the cost of a step has been measured again")
    key = profile_key(models)
    return _kept(profile, cache_path(key), key, report)


def _kept(profile: Profile, path: Path, key: dict, report: Callable[[str], None]) -> LatencyModel:
    """The latency model of what was measured, which is stored for the next start."""
    latency = LatencyModel.fit(list(profile.target), list(map(list, profile.drafts)))
    if profile.waiting > MAX_WAITING:
        report(
            "the machine was busy while the cost of a step was measured: threads waited for "
            f"cores, or were suspended, {profile.waiting:.0%} of the time. It is {AGAIN}"
        )
    try:
        stored = {"key": key, "cost_model": latency.to_dict(), "waiting": profile.waiting}
        write_file(path, json.dumps(stored))
    except OSError as error:
        report(f"the profile could not be stored ({error}); the next start will measure again")
    return latency


def note_drift(path: Path, drift: float, report: Callable[[str], None]) -> None:
    """Say so where the first steps of an engine took much more or less than its profile says
    (drift: their ratio), and write it into the profile's file if that was measured on a busy
    machine."""
    if drift > MAX_DRIFT:
        report(
            f"steps take {drift:.1f} times what the profile says: the machine is busier than when "
            "it was measured, or slower; predictions are corrected"
        )
    elif drift < MIN_DRIFT:
        report(
            f"steps take {drift:.2f} of what the profile says: the machine was busy when it was "
            f"measured. It is {AGAIN}"
        )
        try:
            write_file(path, json.dumps(json.loads(path.read_text()) | {"drift": drift}))
        except (OSError, ValueError) as error:
            report(f"the profile could not be marked ({error})")


def profile_key(models: Profiled) -> dict:
    """Everything the times depend on, by name; JSON-able."""
    target = models.target
    return {
        "model": target.loaded.profile_key,
        "draft models": [drafter.profile_key for drafter in models.drafters],
        "batch": models.max_batch,
        "threads": torch.get_num_threads(),
        "device": _device_name(target.device),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "tile": target.max_tile_tokens,
        "method": METHOD,
    }


def cache_path(key: dict) -> Path:
    """The file that keeps the profile of this key."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return cache_folder() / "profiles" / f"{digest}.json"


def _load(path: Path, key: dict) -> LatencyModel:
    """The latency model in a cache file. ValueError or RecursionError says why it is not the one
    that is needed."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or not isinstance(data.get("key"), dict):
        raise ValueError("it does not say what it was measured on")
    if data["key"] != key:
        raise ValueError(_difference(data["key"], key))
    was_busy = data.get("waiting", 0.0) > MAX_WAITING or data.get("drift", 1.0) < MIN_DRIFT
    if was_busy and psutil.cpu_percent(IDLE_CHECK) < IDLE_PERCENT:
        raise MeasuredOnBusyMachine("it was measured on a busy machine, which is idle now")
    return LatencyModel.from_dict(data.get("cost_model"))


def _why_another_does_not_fit(folder: Path, key: dict) -> str | None:
    """A sentence on what is different about the newest profile of the same models, if there is
    one."""
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
    return ", ".join(
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in names
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor_name()} x{os.cpu_count()}"
