"""The cached profile is used where it fits; one that is corrupt or of another machine is refused,
with its reason."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from smartspec.control.latency.cost_curve import ProfileSample
from smartspec.engine.cache_folder import write_file
from smartspec.engine.runtime import passes, profile
from smartspec.engine.runtime.passes import Interrupted, Profile, Profiled, measure_profile
from smartspec.engine.runtime.profile import profile_key, profiled_latency

SAMPLES = tuple(ProfileSample(n, 128 * n, n, 0.01 + 0.001 * n) for n in (1, 2, 4, 8, 16))


def make_runner(
    name: str = "some-model", dtype: torch.dtype = torch.float32, num_layers: int = 30
) -> SimpleNamespace:
    """Stands for a target and for a drafter with passes."""
    key = [name, 10**8, str(dtype), num_layers, 3, 64, 49152]
    loaded = SimpleNamespace(name=name, profile_key=key)
    return SimpleNamespace(
        loaded=loaded, profile_key=key, device=torch.device("cpu"), max_tile_tokens=8, max_len=1024
    )


def models_of(target=None, drafters=(), max_batch: int = 4) -> Profiled:
    return Profiled(target or make_runner(), drafters, max_batch, kv_tokens=4096)


class Machine:
    """Where profiles are measured: num_measured counts them, reports holds what was said."""

    def __init__(self, monkeypatch, cache: Path):
        self.folder = cache / "profiles"
        self.num_measured = 0
        self.waiting = 0.01
        self.reports: list[str] = []
        monkeypatch.setenv("SMARTSPEC_CACHE", str(cache))
        monkeypatch.setattr(profile, "measure_profile", self._measure)

    def _measure(self, models, interrupted=lambda: False) -> Profile:
        if interrupted():
            raise Interrupted
        self.num_measured += 1
        return Profile(SAMPLES, (SAMPLES,) * len(models.drafters), self.waiting)

    def start(self, target=None, draft=None, max_batch: int = 4):
        """What an engine does at start; reports of earlier starts are dropped."""
        self.reports.clear()
        drafts = () if draft is None else (draft,)
        return profiled_latency(models_of(target, drafts, max_batch), self.reports.append)

    @property
    def file(self) -> Path:
        (path,) = self.folder.glob("*.json")
        return path


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_a_profile_is_measured_once(machine):
    first = machine.start()
    assert machine.num_measured == 1 and len(machine.reports) == 1
    second = machine.start()
    assert machine.num_measured == 1 and not machine.reports
    assert second.to_dict() == first.to_dict()
    assert list(machine.folder.iterdir()) == [machine.file]


def with_nan(data: dict) -> dict:
    data["cost_model"]["target"]["constant"] = float("nan")
    return data


def with_negative_slope(data: dict) -> dict:
    data["cost_model"]["target"]["slopes"][0] = -1.0
    return data


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda text: text[: len(text) // 2], "unusable"),
        (lambda text: "", "unusable"),
        (lambda text: "[" * 100_000, "unusable"),
        (lambda text: "[1, 2]", "does not say what it was measured on"),
        (
            lambda text: json.dumps(json.loads(text)["cost_model"]),
            "does not say what it was measured on",
        ),
        (lambda text: json.dumps(with_nan(json.loads(text))), "must be a number, found nan"),
        (lambda text: json.dumps(with_negative_slope(json.loads(text))), "'slopes'"),
        (
            lambda text: json.dumps(json.loads(text) | {"cost_model": {"format": 0}}),
            "not of format",
        ),
        (lambda text: json.dumps(json.loads(text) | {"cost_model": None}), "not of format"),
        (lambda text: "\udcff\udcfe", "unusable"),
    ],
)
def test_a_corrupt_file_is_refused_with_its_reason_and_measured_again(machine, spoil, reason):
    machine.start()
    good = machine.file.read_text()
    machine.file.write_bytes(spoil(good).encode(errors="surrogateescape"))
    machine.start()
    assert machine.num_measured == 2
    assert machine.file.name in machine.reports[0] and reason in machine.reports[0]
    assert machine.file.read_text() == good, "and replaced"


def test_a_file_copied_from_another_machine_is_refused_by_what_it_says(machine):
    machine.start()
    data = json.loads(machine.file.read_text())
    data["key"]["device"] = "Other CPU x64"
    machine.file.write_text(json.dumps(data))
    machine.start()
    assert machine.num_measured == 2
    assert (
        "unusable" in machine.reports[0]
        and "device is 'Other CPU x64' there and" in machine.reports[0]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("_device_name", "Other CPU x64"), ("transformers", SimpleNamespace(__version__="0.1"))],
)
def test_a_cache_folder_of_another_machine_is_not_used_and_the_difference_is_said(
    machine, monkeypatch, name, value
):
    machine.start()
    monkeypatch.setattr(profile, name, (lambda device: value) if isinstance(value, str) else value)
    machine.start()
    assert machine.num_measured == 2
    shown = value if isinstance(value, str) else value.__version__
    assert "does not fit" in machine.reports[0] and f"{shown!r} here" in machine.reports[0]
    machine.start()
    assert machine.num_measured == 2, "both are kept"


def test_everything_the_times_depend_on_is_in_the_key(machine, monkeypatch):
    keys = [
        profile_key(models_of()),
        profile_key(models_of(make_runner("other-model"))),
        profile_key(models_of(make_runner(dtype=torch.bfloat16))),
        profile_key(models_of(make_runner(num_layers=12))),
        profile_key(models_of(drafters=(make_runner("draft-model"),))),
        profile_key(models_of(max_batch=8)),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    keys.append(profile_key(models_of()))
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    keys.append(profile_key(models_of()))
    texts = {json.dumps(key) for key in keys}
    assert len(texts) == len(keys)
    assert json.loads(json.dumps(keys[0])) == keys[0]


def test_another_model_is_no_reason_to_report(machine):
    machine.start()
    machine.start(make_runner("other-model"))
    assert machine.num_measured == 2 and len(machine.reports) == 1
    machine.start(make_runner(), make_runner("draft-model"))
    assert machine.num_measured == 3 and len(machine.reports) == 1


def test_a_cache_that_cannot_be_written_costs_only_the_next_start(machine):
    machine.folder.parent.joinpath("profiles").write_text("a file where the folder should be")
    assert machine.start().target.constant >= 0
    assert "could not be stored" in machine.reports[-1]


def test_a_profile_of_a_busy_machine_is_measured_again_when_it_is_idle(machine, monkeypatch):
    machine.waiting = 0.3
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 90.0)
    assert machine.start().target.constant >= 0
    assert "busy" in machine.reports[-1] and "30%" in machine.reports[-1]
    machine.start()
    assert machine.num_measured == 1, "it would be no better"
    machine.waiting = 0.01
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 5.0)
    machine.start()
    assert machine.num_measured == 2 and "busy machine, which is idle now" in machine.reports[0]
    machine.start()
    assert machine.num_measured == 2 and not machine.reports


@pytest.mark.parametrize(("seconds_of_thread", "waiting"), [(9.5, 0.05), (1.0, 0.9)])
def test_a_process_that_was_suspended_while_it_measured_has_waited(
    monkeypatch, seconds_of_thread, waiting
):
    clocks = {"perf_counter": iter([0.0, 10.0]), "thread_time": iter([0.0, seconds_of_thread])}
    monkeypatch.setattr(
        passes, "time", SimpleNamespace(**{name: clock.__next__ for name, clock in clocks.items()})
    )
    monkeypatch.setattr(passes, "measure_passes", lambda *_, **limits: SAMPLES)
    monkeypatch.setattr(passes, "_seconds_waited", lambda: 0.0)
    monkeypatch.setattr(passes, "collapse_pages", lambda: ())
    assert measure_profile(models_of()).waiting == pytest.approx(waiting)


def test_two_processes_with_one_id_may_store_at_the_same_time(machine, monkeypatch):
    """As in two containers that share a cache folder; here two threads."""
    both_wrote, replace = threading.Barrier(2, timeout=60), Path.replace

    def replace_after_both_wrote(self, target):
        both_wrote.wait()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_after_both_wrote)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: write_file(machine.folder / "name.json", "text"), range(2)))
    assert list(machine.folder.iterdir()) == [machine.folder / "name.json"]


def test_first_steps_that_are_faster_than_the_profile_have_it_measured_again_when_idle(
    machine, monkeypatch
):
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 5.0)
    machine.start()
    profile.note_drift(machine.file, 1.2, machine.reports.append)
    assert not [report for report in machine.reports if "steps" in report]
    profile.note_drift(machine.file, 2.0, machine.reports.append)
    assert "2.0 times" in machine.reports[-1]
    machine.start()
    assert machine.num_measured == 1, "the machine is busy now, its profile is right"
    profile.note_drift(machine.file, 0.5, machine.reports.append)
    assert "0.50 of what the profile says" in machine.reports[-1]
    machine.start()
    assert machine.num_measured == 2 and "busy machine, which is idle now" in machine.reports[0]
    machine.start()
    assert machine.num_measured == 2


def test_a_running_engine_measures_again_when_the_machine_is_idle(machine, monkeypatch):
    models, load = models_of(), [90.0]
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: load[0])

    def again(is_busy=False):
        return profile.measured_again(models, lambda: is_busy, machine.reports.append)

    assert not profile.could_be_better(models), "there is none"
    machine.waiting = 0.3
    machine.start()
    assert not profile.could_be_better(models), "the machine is busy still"
    load[0], machine.waiting = 5.0, 0.01
    assert profile.could_be_better(models)
    assert again(is_busy=True) is None and profile.could_be_better(models)
    assert again().target == machine.start().target and machine.num_measured == 2
    assert not profile.could_be_better(models)


def test_a_profile_that_is_gone_is_not_marked(tmp_path):
    reports = []
    profile.note_drift(tmp_path / "gone.json", 0.5, reports.append)
    assert "could not be marked" in reports[-1]
