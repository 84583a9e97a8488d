"""Shared test settings: few threads, fixed hypothesis behaviour, and the tier of every test."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("smartspec", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("smartspec")

TESTS = Path(__file__).parent


@pytest.fixture
def call(monkeypatch, capsys):
    """`smartspec` in this process, where libraries are loaded once: exit code, output, errors."""
    from smartspec.cli import main

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smartspec", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code, *capsys.readouterr()

    return called


TIERS = {  # folders and files; everything else is a unit test, without a mark
    "simulation": (
        "sim",
        "control/test_acceptance_planning.py",
        "control/test_control_loop.py",
        "control/test_exploration.py",
        "control/test_latency_closed_loop.py",
    ),
    "lab": ("lab",),
    "end_to_end": (
        "server",
        "bench",
        "engine/runtime/test_real_exactness.py",
        "engine/runtime/test_real_model.py",
        "report/test_report_command.py",
        "test_llm.py",
        "test_readme.py",
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by where they stand."""
    for item in items:
        for tier, places in TIERS.items():
            if any(item.path.is_relative_to(TESTS / place) for place in places):
                item.add_marker(tier)
