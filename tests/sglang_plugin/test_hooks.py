"""How the plugin comes into SGLang, and when it stays out."""

import logging
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fake_sglang import NewerPolicy, OwnPolicy

from smartspec.sglang_plugin import plugin, register
from smartspec.sglang_plugin.policy import GoodputSteps

ROOT = Path(__file__).parents[2]
WORKER = SimpleNamespace(server_args=SimpleNamespace(tp_size=1))


class Controller:
    """SGLang's AdaptiveController, as far as it is hooked."""

    def __init__(self, worker, policy):
        self.worker, self.params = worker, policy


@pytest.fixture
def sglang(monkeypatch, tmp_path):
    """A stand-in; returns it with what was registered."""
    monkeypatch.setenv("SMARTSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv(plugin.UNTESTED, raising=False)
    found, hooks = ModuleType("sglang"), []
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    found.__version__, found.hooks = plugin.TESTED[-1], hooks
    registry.HookRegistry = SimpleNamespace(register=lambda *hook: hooks.append(hook))
    registry.HookType = SimpleNamespace(AROUND="around", BEFORE="before")
    for module in (found, ModuleType("sglang.srt"), ModuleType("sglang.srt.plugins"), registry):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def made(worker=WORKER, policy=None, **names):
    controller = object.__new__(Controller)
    plugin.hand_over(
        Controller.__init__, controller, worker, policy or OwnPolicy({1: [0, 1, 3]}), **names
    )
    return controller


def test_the_entry_point_is_that_of_the_package():
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    module, _, name = entries["sglang.srt.plugins"]["smartspec"].partition(":")
    assert getattr(import_module(module), name) is register


def test_without_being_asked_nothing_happens():
    program = (
        "import sys\nfrom smartspec.sglang_plugin import register\nregister()\n"
        "print([name for name in ('numpy', 'sglang', 'vllm', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_it_is_registered_where_it_is_asked_for(sglang, monkeypatch):
    monkeypatch.setenv(plugin.ACTIVATION, "on")
    register()
    assert [(hook[0].rpartition(".")[2], hook[2]) for hook in sglang.hooks] == [
        ("__init__", "around"),
        ("process_batch_result_prefill", "before"),
    ]


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.6.0"])
def test_an_untested_version_is_left_alone(sglang, monkeypatch, caplog, version):
    monkeypatch.setenv(plugin.ACTIVATION, "on")
    sglang.__version__ = version
    register()
    assert not sglang.hooks
    (said,) = caplog.messages
    assert version in said and "SMARTSPEC_UNTESTED=1" in said
    monkeypatch.setenv(plugin.UNTESTED, "1")
    register()
    assert len(sglang.hooks) == 2


def test_a_wrong_value_is_named(sglang, monkeypatch, caplog):
    monkeypatch.setenv(plugin.ACTIVATION, "yes")
    register()
    assert not sglang.hooks and "'yes': use on or off" in caplog.text


def test_our_policy_takes_the_place_of_sglangs(sglang, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    controller = made()
    assert isinstance(controller.params, GoodputSteps) and controller.worker is WORKER
    assert f"touch {tmp_path}/sglang/off" in caplog.text


@pytest.mark.parametrize("is_off", [False, True])
def test_a_newer_interface_is_served_too(sglang, tmp_path, is_off):
    """Further parameters with defaults, and methods that the tested version does not have: SGLang's
    28045."""
    if is_off:
        (tmp_path / "sglang").mkdir()
        (tmp_path / "sglang" / "off").touch()

    def initialize(self, worker, policy, strategy="ema"):
        self.params, self.strategy = policy, strategy

    controller, own = object.__new__(Controller), NewerPolicy({1: [0, 1, 3]})
    plugin.hand_over(initialize, controller, WORKER, own, strategy="throughput_aware")
    assert isinstance(controller.params, GoodputSteps) and controller.strategy == "throughput_aware"
    steps = controller.params.get_steps_for_batch(2)
    controller.params.on_state_activated(steps)
    controller.params.on_verify_complete([0, 0], 2, steps)
    assert own.activated == [steps] and own.told == ([steps] if is_off else [])


class Group:
    """SGLang's GroupCoordinator on one of two ranks. others: what the other rank answers."""

    def __init__(self, rank: int, others):
        self.rank_in_group, self._others = rank, others

    def all_gather_object(self, mine):
        return [mine, self._others]

    def broadcast_object(self, mine, src):
        return mine if self.rank_in_group == src else self._others


@pytest.fixture
def place(sglang, monkeypatch):
    """A function that puts our policy in the place of another, on a rank of this group."""

    def place(own, group: Group):
        distributed = ModuleType("sglang.srt.distributed")
        distributed.get_tp_group = lambda: group
        monkeypatch.setitem(sys.modules, distributed.__name__, distributed)
        return made(SimpleNamespace(server_args=SimpleNamespace(tp_size=2)), own).params

    return place


@pytest.mark.parametrize(("rank", "others", "steps"), [(0, None, 0), (1, 3, 3)])
def test_under_tensor_parallelism_rank_0_decides(place, rank, others, steps):
    own = OwnPolicy({1: [0, 1, 3]})
    policy = place(own, Group(rank, None))
    policy._group = Group(rank, others)
    assert policy.candidate_steps == [0, 1, 3] and policy.get_steps_for_batch(4) == steps
    assert policy.on_verify_complete([0] * 4, 4) is None and not own.verified


def test_under_tensor_parallelism_no_rank_steps_aside_alone(place, caplog):
    own = OwnPolicy({1: [0, 1, 3]})
    assert place(own, Group(0, "it does not fit on rank 1")) is own
    assert "it does not fit on rank 1" in caplog.text


class OtherPolicy(OwnPolicy):
    def get_steps_for_batch(self, batch_size: int, num_tokens: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("worker", "policy", "reason"),
    [
        (WORKER, OtherPolicy({1: [0, 1]}), "get_steps_for_batch takes"),
        (WORKER, object(), "set_cuda_graph_bs takes None"),
        (WORKER, OwnPolicy({1: [3]}), "nothing to choose from"),
        (SimpleNamespace(), OwnPolicy({1: [0, 1]}), "server_args"),
    ],
)
def test_where_it_does_not_fit_sglangs_policy_is_handed_over(
    sglang, caplog, worker, policy, reason
):
    controller = made(worker, policy)
    assert controller.params is policy and controller.worker is worker
    assert len(caplog.messages) == 1 and reason in caplog.text


def test_another_controller_is_left_alone(sglang, caplog):
    def initialize(self, worker, config_path, policy=None):
        self.params, self.config_path = policy, config_path

    controller, own = object.__new__(Controller), OwnPolicy({1: [0, 1]})
    plugin.hand_over(initialize, controller, WORKER, "steps.json", policy=own)
    assert (
        controller.params is own
        and controller.config_path == "steps.json"
        and len(caplog.messages) == 1
    )


def test_the_end_of_prefill_reaches_our_policy_alone(sglang):
    ended = SimpleNamespace(copy_done=None)
    ours = SimpleNamespace(model_worker=SimpleNamespace(adaptive_controller=made()))
    plugin.end_prefill(ours, None, ended)
    plugin.end_prefill(ours, result=ended)
    others = Controller(WORKER, OwnPolicy({1: [0]}))
    for worker in (SimpleNamespace(adaptive_controller=others), SimpleNamespace(), None):
        plugin.end_prefill(SimpleNamespace(model_worker=worker), None, ended)
    plugin.end_prefill(SimpleNamespace())
