"""Settings: where they come from, and what is said about wrong ones."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from toy_engine import make_config

from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.compatibility import slowness
from smartspec.vllm_plugin.settings import Settings


def test_configuration_goes_before_environment():
    environment = {
        "SMARTSPEC_POLICY": "off",
        "SMARTSPEC_CACHE": "/somewhere",
        "SMARTSPEC_METRICS_SECONDS": "2.5",
    }
    settings = Settings.read({"smartspec": {"policy": "fixed:2"}, "other": 1}, environment)
    assert settings == Settings(policy="fixed:2", cache=Path("/somewhere"), metrics_seconds=2.5)
    assert Settings.read({}, {}) == Settings()


def test_the_home_of_a_path_is_found_where_no_shell_does_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    settings = Settings.read({"smartspec": {"card": "~/card.json"}}, {"SMARTSPEC_CACHE": "~/cache"})
    assert (settings.card, settings.cache) == (Path("/home/me/card.json"), Path("/home/me/cache"))


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"polcy": "off"}, "polcy"),
        ({"policy": 3}, "policy"),
        ({"metrics_seconds": "soon"}, "soon"),
        ({"metrics_seconds": -1}, "-1"),
        ({"act": "yes"}, "act"),
        ({"act": 3}, "act"),
        ({"guard": -1}, "guard"),
        ({"guard": True}, "guard"),
        ({"guard": "x"}, "guard"),
        ({"act": True, "policy": "observe"}, "act"),
        ("off", "off"),
    ],
)
def test_a_wrong_setting_is_named(section, named):
    with pytest.raises(ValueError, match=named):
        Settings.read({"smartspec": section}, {})


@pytest.mark.parametrize(("value", "act"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_a_switch_and_a_ratio(value, act):
    assert Settings.read({}, {"SMARTSPEC_ACT": value}).act is act
    section = {"act": act, "guard": 0.9}
    assert Settings.read({"smartspec": section}, {}) == Settings(**section)


def test_an_unknown_policy_is_refused_at_start(tmp_path):
    with pytest.raises(ValueError, match="unknown policy 'best'"):
        Scheduler(make_config(tmp_path, settings={"policy": "best"}))


def test_a_policy_of_ones_own_decides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "policy_for_vllm.py").write_text(
        "from smartspec.control import Policy, plan_of_lengths\n"
        "class Two(Policy):\n"
        "    def plan(self, view, estimates):\n"
        "        return plan_of_lengths(view, estimates, 2)\n"
    )
    Scheduler(make_config(tmp_path, settings={"policy": "policy_for_vllm:Two"}))
    with pytest.raises(
        ValueError, match="has no class 'Three'; classes there that are a policy: Two"
    ):
        Scheduler(make_config(tmp_path, settings={"policy": "policy_for_vllm:Three"}))


def test_a_log_that_exists_is_refused_at_start(tmp_path):
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="another file"):
        Scheduler(make_config(tmp_path, settings={"decision_log": str(tmp_path / "log.jsonl")}))


def test_a_set_up_that_costs_threads_is_told():
    assert "set NUMBA_THREADING_LAYER=workqueue" in slowness("ngram", True, {})


def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch):
    """As in a container whose user has no name."""

    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    assert Settings.read({}, {}).cache == Path(tempfile.gettempdir(), f"smartspec-{os.getuid()}")
