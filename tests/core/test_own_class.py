"""Policies of a user's own, by module:Class."""

import sys

import factories
import pytest

from smartspec.control import Controller, CostCurve, DrafterSpec, LatencyModel
from smartspec.core.own_class import is_own_class
from smartspec.core.policy_names import parse_policy

MODULE = """
from dataclasses import dataclass

import numpy as np

from smartspec.control import Policy, plan_of_lengths


class Same(Policy):
    def __init__(self, length=2, other=0.0):
        self.arguments = length, other

    def plan(self, view, estimates):
        return plan_of_lengths(view, estimates, self.arguments[0])


class NoPlan(Policy):
    pass


class Stranger:
    def plan(self, view, estimates): ...
    def cut(self, plan, drafted, survival): ...


class Broken(Policy):
    def __init__(self):
        raise RuntimeError("no weights")

    def plan(self, view, estimates): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with modules that no other test has imported; not on Python's path, as
    for a command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    (tmp_path / "owned.py").write_text(MODULE)
    (tmp_path / "needy.py").write_text("import no_such_library\n")
    (tmp_path / "faulty.py").write_text("\nlength = undefined\n")
    (tmp_path / "unwritten.py").write_text("def (\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("owned:Same", (2, 0.0)), ("owned:Same:5", (5, 0.0)), ("owned:Same:3:0.5", (3, 0.5))],
)
def test_a_class_of_the_current_directory_is_made_with_its_numbers(folder, name, arguments):
    assert parse_policy(name).arguments == arguments


def test_the_controller_takes_the_name(folder):
    controller = Controller(
        parse_policy("owned:Same:3"),
        4,
        LatencyModel(CostCurve.linear(0.04, 1e-6)),
        drafters=(DrafterSpec("lookup"),),
        name="owned:Same:3",
    )
    plan = controller.plan(factories.make_view(2, found_lengths=[4, 2]))
    assert plan.lengths.tolist() == [3, 2]
    assert controller.state()["policy"] == "owned:Same:3"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "absent:Same",
            "no module 'absent' in .* start in the folder of its file, or name that in PYTHONPATH",
        ),
        ("owned.deeper:Same", "no module 'owned.deeper'"),
        (
            "needy:Same",
            "'needy' cannot be imported, ModuleNotFoundError: .*no_such_library.*needy.py, line 1",
        ),
        ("faulty:Same", "'faulty' cannot be imported, NameError: .*undefined.*faulty.py, line 2"),
        (
            "unwritten:Same",
            r"'unwritten' cannot be imported, SyntaxError: .*\(unwritten.py, line 1\)$",
        ),
        (
            "owned:Sane",
            "owned.py.* has no class 'Sane'; classes there that are a policy: Same, Broken",
        ),
        ("owned:np", "has no class 'np'"),
        ("owned:NoPlan", "is no policy: it lacks plan$"),
        (
            "owned:Stranger",
            "is no policy: it lacks learn, end, state, the base class smartspec.control.Policy",
        ),
        ("owned:Broken", "Broken cannot be made, RuntimeError: no weights .*owned.py, line"),
        ("owned:Same:three", "'three' is no number"),
        ("owned:Same:1:2:3", "Same cannot be made, TypeError"),
    ],
)
def test_what_is_wrong_with_it_is_said(folder, name, told):
    with pytest.raises(ValueError, match=told) as error:
        parse_policy(name)
    assert str(error.value).startswith(f"policy {name!r}")


@pytest.mark.parametrize(
    "name",
    ["goodput", "fixed:3", "uniform:1,3", "batch-table:0.6", "a/b:c", "C:\\x", "repo/model:Q4_K_M"],
)
def test_other_names_are_not_taken_for_classes(name):
    assert not is_own_class(name)


def test_a_built_in_name_is_never_searched_as_a_module(folder):
    (folder / "off.py").write_text(MODULE)
    with pytest.raises(ValueError, match="unknown policy 'off:Same'"):
        parse_policy("off:Same")
