"""Published policies by name: found where Python finds lab/, and said to be in the repository where
it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smartspec.core.lab_tables import lab_table
from smartspec.core.policy_names import all_policies, parse_policy, published_policies

ROOT = Path(__file__).parents[2]
SIMULATE = "smartspec simulate --batch 1 --num-requests 2 --controller-time none --policy"


def run(folder: Path, line: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-P", "-m", *line.split()]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_published_policies_have_names_beside_ours():
    assert "nightjar" in published_policies() and "nightjar" in all_policies(8)
    assert type(parse_policy("nightjar")).__module__ == "lab.policies.nightjar"
    assert lab_table("policies", "NO_SUCH_TABLE") == lab_table("no_such_module", "POLICIES") == {}


def test_the_current_directory_is_searched():
    found = run(ROOT, f"{SIMULATE} nightjar,field")
    assert found.returncode == 0, found.stderr
    assert "nightjar" in found.stdout and "sequoia" in found.stdout


@pytest.mark.parametrize(("name", "status"), [("nightjar", 2), ("field", 2), ("all", 0)])
def test_without_the_repository_a_sentence_says_where_they_are(name, status, tmp_path):
    found = run(tmp_path, f"{SIMULATE} {name}")
    assert found.returncode == status, found.stderr
    assert "published methods" in found.stderr
    assert (
        "are in the repository's lab: start in the repository's folder, or name it in PYTHONPATH"
        in found.stderr
    )
    assert ("goodput" in found.stdout) == (status == 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{SIMULATE} fixed:1 --host papi", "others are in"),
        (f"{SIMULATE} fixed:1 --drafting parallel --draft-model llama-3.2-1b", "parallel is in"),
        ("smartspec serve --speculator small", "reasoning steps is in"),
    ],
)
def test_hosts_draftings_and_routes_are_named_likewise(line, told, tmp_path):
    refused = run(tmp_path, line)
    assert refused.returncode == 2 and f"{told} the repository's lab" in refused.stderr


def test_a_folder_of_that_name_that_is_another_is_no_lab(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    assert "published methods are in" in run(tmp_path, f"{SIMULATE} hf:0.4").stderr


def test_what_fails_inside_the_lab_is_not_hidden(tmp_path):
    (tmp_path / "lab" / "policies").mkdir(parents=True)
    (tmp_path / "lab" / "policies" / "__init__.py").write_text("import no_such_library\n")
    assert "no_such_library" in run(tmp_path, f"{SIMULATE} nightjar").stderr
