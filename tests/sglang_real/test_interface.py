"""What the plugin relies on is there in this version of SGLang."""

import ast
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import sglang
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController, AdaptiveSpecPolicy
from sglang.srt.speculative.adaptive_spec_params import (
    DEFAULT_ADAPTIVE_CONFIG,
    AdaptiveSpeculativeParams,
    AdaptiveStepSlot,
    resolve_candidate_steps_from_config,
)

from lab.policies.sglang_ema import Tracker
from smartspec.observation.length_tables import sglang_config
from smartspec.sglang_plugin import plugin
from smartspec.sglang_plugin.policy import GoodputSteps
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.switch import Switch

SOURCE = Path(find_spec("sglang").origin).parent / "srt"


def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((SOURCE / path).read_text("utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_this_version_is_tested():
    assert plugin.version_problem(sglang.__version__, {}) is None
    assert tuple(inspect.signature(AdaptiveController.__init__).parameters) == plugin.PARAMETERS


def test_our_policy_has_all_that_sglangs_interface_names():
    named = {name for name in vars(AdaptiveSpecPolicy) if not name.startswith("_")}
    assert named == {*plugin.METHODS, "candidate_steps"}
    ours = GoodputSteps(AdaptiveSpeculativeParams(3), Switch(Path("off"), FileThread()), print)
    for name, expected in plugin.METHODS.items():
        assert tuple(inspect.signature(getattr(AdaptiveSpecPolicy, name)).parameters) == (
            "self",
            *expected,
        )
        assert plugin.parameters_problem(name, getattr(ours, name), expected) is None


def test_sglangs_own_policy_passes_the_check():
    assert plugin.policy_problem(AdaptiveSpeculativeParams(3)) is None


def test_the_scheduler_calls_in_the_order_that_times_rely_on():
    """Its modules need a GPU's libraries to be imported: their source is read."""
    processor = functions("managers/scheduler_components/batch_result_processor.py")
    prefill = ast.unparse(processor["process_batch_result_prefill"])
    assert [argument.arg for argument in processor["process_batch_result_prefill"].args.args][
        1:
    ] == ["batch", "result"]
    assert "result.copy_done.synchronize()" in prefill
    resolve = ast.unparse(processor["_resolve_spec_v2_tokens"])
    assert (
        "self.model_worker.on_verify_complete_cpu(result.num_correct_drafts_per_req_cpu" in resolve
    )
    worker = ast.unparse(functions("speculative/eagle_worker_v2.py")["forward_batch_generation"])
    assert worker.index("self.activate_step_by_batch(batch.seq_lens.shape[0])") < worker.index(
        "self.verify("
    )
    assert worker.index("self.verify(") < worker.index(
        "self.draft_worker._draft_extend_for_decode("
    )
    loop = ast.unparse(functions("managers/scheduler.py")["event_loop_overlap"])
    assert loop.index("self.run_batch(batch)") < loop.rindex("pop_and_process()")


def test_the_default_tiers_are_those_of_the_page():
    tiers = {size: entry["candidate_steps"] for size, entry in DEFAULT_ADAPTIVE_CONFIG.items()}
    assert tiers == {"1": [1, 3, 5, 7], "8": [0, 1, 3], "32": [0, 1], "64": [0]}


@pytest.mark.parametrize("seed", range(20))
def test_our_baseline_moves_as_sglangs_policy_does(seed):
    """The baseline has every length as a tier, and never 0."""
    rng = np.random.default_rng(seed)
    start = int(rng.integers(1, 8))
    real = AdaptiveStepSlot(start, {"candidate_steps": [1, 2, 3, 4, 5, 6, 7]})
    baseline = Tracker(start, start - 1.0)
    for part in range(6):
        acceptance = rng.random()
        for _ in range(40):
            right = rng.random((int(rng.integers(1, 9)), real.current_steps)) < acceptance
            accepted = right.cumprod(axis=1).sum(axis=1)
            real.update(accepted.tolist())
            baseline.update(float(accepted.mean()), 7)
            assert baseline.length == real.current_steps, part
            assert baseline.average == pytest.approx(real.ema_accept_len)


def test_an_exported_table_is_read_by_sglang(tmp_path):
    tables = [[5] * 7 + [0] * 57, [3] * 8 + [1] * 56]
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps(sglang_config(tables)))
    assert resolve_candidate_steps_from_config(str(path)) == [0, 1, 3, 5]


@pytest.mark.parametrize(("asked", "ours"), [("on", True), ("off", False)])
def test_sglang_loads_the_installed_plugin(asked, ours, tmp_path):
    """As each of its processes does. The hook on prefill needs modules that need a GPU's libraries:
    it is left out."""
    program = (
        "from sglang.srt.plugins import load_plugins\nload_plugins()\n"
        "from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController\n"
        "from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams\n"
        "from lib.emulated_gpu.sglang_loop import Worker\n"
        "print(type(AdaptiveController(Worker(3), AdaptiveSpeculativeParams(3)).params).__name__)"
    )
    paths = os.pathsep.join(
        [str(Path(__file__).parents[2] / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    )
    environment = os.environ | {
        "SMARTSPEC_SGLANG": asked,
        "PYTHONPATH": paths,
        "SMARTSPEC_CACHE": str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    name = "GoodputSteps" if ours else "AdaptiveSpeculativeParams"
    assert result.stdout.splitlines()[-1:] == [name], result.stderr
