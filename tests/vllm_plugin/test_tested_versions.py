"""The versions of vLLM that were tested: the pages say what the file says."""

import sys
from pathlib import Path

import pytest

from smartspec.vllm_plugin import tested_versions
from smartspec.vllm_plugin.compatibility import is_newer, version_problem
from smartspec.vllm_plugin.tested_versions import VERSIONS, rows

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm_real"))

from record_versions import PAGES, TABLE, main, record, table

ROOT = Path(__file__).parents[2]
FIRST_SCREEN = 50  # lines


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_have_the_table(page):
    text = (ROOT / page).read_text()
    assert TABLE.findall(text) == [table(PAGES[page])]
    assert text.partition("| vLLM | tested |")[0].count("\n") < FIRST_SCREEN


def test_a_run_changes_the_row_of_its_release(tmp_path, monkeypatch):
    (tmp_path / "data.json").write_text(tested_versions.DATA.read_text())
    monkeypatch.setattr(tested_versions, "DATA", tmp_path / "data.json")
    before = rows()
    for version, tested in (("0.32.1+cpu", "3 passed"), ("0.9.0", "long ago")):
        record(version, tested, tmp_path / "data.json")
    assert [row["vllm"] for row in rows()] == [*(row["vllm"] for row in before), "0.9"]
    assert {row["vllm"]: row["tested"] for row in rows()}["0.32"] == "3 passed"
    for page in PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(f"# A\n\n{table('x')}\nmore\n")
    assert main(tmp_path) == 0
    assert "| 0.9 | long ago |\n\nmore\n" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# A\n")
    assert main(tmp_path) == 2


def test_what_is_used_is_what_is_in_the_table():
    releases = [row["vllm"] for row in rows()]
    for release in releases:
        assert version_problem(f"{release}.1+cpu", {}) is None
    assert ".".join(map(str, VERSIONS[1])) == releases[0]
    newer = f"{VERSIONS[1][0]}.{VERSIONS[1][1] + 1}.0"
    assert is_newer(newer) and "SMARTSPEC_UNTESTED=1" in version_problem(
        newer, {"SMARTSPEC_UNTESTED": "0"}
    )
    assert version_problem(newer, {"SMARTSPEC_UNTESTED": "1"}) is None
    assert "not supported" in version_problem("0.29.0", {"SMARTSPEC_UNTESTED": "1"})
