"""How the plugin comes into SGLang, and when it stays out."""

import logging
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fake_sglang import OwnPolicy

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
    plugin.hand_over(Controller.__init__, controller, worker, policy or OwnPolicy({1: [0, 1, 3]}), **names)
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
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_it_is_registered_where_it_is_asked_for(sglang, monkeypatch):
    monkeypatch.setenv(plugin.ACTIVATION, "on")
    register()
    assert [hook[0].rpartition(".")[2] for hook in sglang.hooks] == ["__init__", "process_batch_result_prefill"]
    assert [hook[2] for hook in sglang.hooks] == ["around", "before"]


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.6.0"])
def test_an_untested_version_is_left_alone(sglang, monkeypatch, caplog, version):
    monkeypatch.setenv(plugin.ACTIVATION, "on")
    sglang.__version__ = version
    register()
    assert not sglang.hooks
    assert len(caplog.messages) == 1 and version in caplog.text and "SMARTSPEC_UNTESTED=1" in caplog.text
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
    assert controller.params.off_file == tmp_path / "sglang" / "off"
    assert f"touch {tmp_path}/sglang/off" in caplog.text


class OtherPolicy(OwnPolicy):
    def get_steps_for_batch(self, batch_size: int, num_tokens: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("worker", "policy", "reason"),
    [
        (WORKER, OtherPolicy({1: [0, 1]}), "get_steps_for_batch takes"),
        (WORKER, object(), "set_cuda_graph_bs takes None"),
        (WORKER, OwnPolicy({1: [3]}), "nothing to choose from"),
        (SimpleNamespace(server_args=SimpleNamespace(tp_size=2)), OwnPolicy({1: [0, 1]}), "tensor parallel is 2"),
        (SimpleNamespace(), OwnPolicy({1: [0, 1]}), "server_args"),
    ],
)
def test_where_it_does_not_fit_sglangs_policy_is_handed_over(sglang, caplog, worker, policy, reason):
    controller = made(worker, policy)
    assert controller.params is policy and controller.worker is worker
    assert len(caplog.messages) == 1 and reason in caplog.text


def test_another_controller_is_left_alone(sglang, caplog):
    def initialize(self, worker, policy, more=None):
        self.params, self.more = policy, more

    controller, own = object.__new__(Controller), OwnPolicy({1: [0, 1]})
    plugin.hand_over(initialize, controller, WORKER, own, more=3)
    assert controller.params is own and controller.more == 3 and len(caplog.messages) == 1


def test_the_end_of_prefill_reaches_our_policy_alone(sglang):
    ended = SimpleNamespace(copy_done=None)
    controller = made()
    plugin.end_prefill(SimpleNamespace(model_worker=SimpleNamespace(adaptive_controller=controller)), None, ended)
    plugin.end_prefill(SimpleNamespace(model_worker=SimpleNamespace(adaptive_controller=controller)), result=ended)
    others = Controller(WORKER, OwnPolicy({1: [0]}))
    for worker in (SimpleNamespace(adaptive_controller=others), SimpleNamespace(), None):
        plugin.end_prefill(SimpleNamespace(model_worker=worker), None, ended)
    plugin.end_prefill(SimpleNamespace())
