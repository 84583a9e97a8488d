"""`vllm_plugin.py overhead` and `hooks`: the time of the plugin's calls, by step."""

import sys
from pathlib import Path

import numpy as np
from lib import vllm_overhead as overhead
from toy_engine import ToyEngine, make_config

from smartspec.vllm_plugin import Scheduler

# it runs in vLLM's environment, without lib's parent
sys.path.append(str(Path(overhead.__file__).parent))
import vllm_hooks as hooks


def test_overhead_has_the_time_of_every_decoding_step(monkeypatch):
    monkeypatch.setattr(overhead, "NUM_WARM_UP_STEPS", 5)
    steps = overhead.measure("ngram", 2, 120)
    assert steps.shape[0] > 5 and steps.shape[1] == 3
    assert (steps.sum(axis=0) > 0).all()


def test_hooks_are_timed_as_soon_as_there_is_a_controller(tmp_path):
    scheduler = Scheduler(make_config(tmp_path, method="ngram", settings={"metrics_seconds": 1}))
    seen = hooks.watch(scheduler.speculation)
    engine = ToyEngine(scheduler)
    engine.serve(*range(2), max_tokens=200)
    steps = np.array(seen)
    assert len(steps) > 5 and (steps[:, 0] <= 2).all()
    assert (np.diff(steps[:, 3:], axis=0) >= 0).all() and (steps[-1, 3:] > 0).all()
    assert steps[-1, 3] > steps[-1, 4]  # the controller is a part of the hooks
