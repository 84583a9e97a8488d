"""`python -m lab.paper`: a page of what there is, which the same command completes."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from lab.paper import figures, lengths
from lab.paper.cells import FULL, QUICK
from lab.paper.live_figures import live_figures, live_matrix, live_sections
from lab.paper.paper_figures import PAGE, POINTS, report_paper
from lab.paper.points import Figure, PointFile

ROOT = Path(__file__).parents[3]
BATCHES = (1, 256)


@pytest.fixture
def small_figures(monkeypatch):
    """Lengths of two sizes of batch, and nothing else; a test may put another measure in its
    place."""
    made = [lengths.length_figure(BATCHES, num_steps=20)]
    names = ("curves", "change", "predictions", "offline", "rate_step", "latency")
    first, *others = [Figure(name, (), lengths.measure) for name in names]
    monkeypatch.setattr(
        figures, "capacity_figure", lambda effort: Figure("capacity", (), lengths.measure)
    )
    monkeypatch.setattr(
        figures, "simulated_figures", lambda file, effort: (first, made[0], *others)
    )
    return made


def page_of(folder: Path) -> str:
    return (folder / PAGE).read_text()


def test_the_page_has_the_figures_and_a_second_run_measures_nothing(
    tmp_path, small_figures, capsys
):
    folder = tmp_path / "new" / "folder"
    report_paper(folder, QUICK, processes=2)
    assert "Chosen length against batch size" in page_of(folder) and "<svg" in page_of(folder)
    num_points = (len(lengths.ACCEPTANCES) * len(lengths.POLICIES) + 1) * len(BATCHES)
    assert len((folder / POINTS).read_text().splitlines()) == num_points
    small_figures[0] = replace(small_figures[0], measure=None)
    report_paper(folder, QUICK)
    assert capsys.readouterr().out.count(f"wrote {folder / PAGE}") == 2


def test_ctrl_c_leaves_a_page_of_what_there_is(tmp_path, small_figures, capsys):
    whole = small_figures[0]

    def interrupted(settings: dict) -> dict:
        if settings["acceptance"] == "0.7":
            raise KeyboardInterrupt
        return lengths.measure(settings)

    small_figures[0] = replace(whole, measure=interrupted)
    with pytest.raises(typer.Exit) as ended:
        report_paper(tmp_path, QUICK)
    assert ended.value.exit_code == 130
    assert "ended early, points are missing: the same command goes on" in capsys.readouterr().out
    assert "acceptance 0.5" in page_of(tmp_path)
    small_figures[0] = whole
    report_paper(tmp_path, QUICK)
    assert not PointFile(tmp_path / POINTS).missing([whole])


def test_a_folder_that_is_a_file_is_refused(tmp_path, small_figures):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"--output .*file cannot be written .*: name another folder"
    ):
        report_paper(tmp_path / "file", QUICK)


def test_a_log_that_is_none_is_refused_before_anything_is_measured(tmp_path, small_figures):
    (tmp_path / "log.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match="line 1"):
        report_paper(tmp_path / "out", QUICK, decision_log=tmp_path / "log.jsonl")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_its_options_and_says_in_one_line_what_is_wrong(tmp_path):
    """Another process, as people start it."""
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "lab.paper", "--output", str(tmp_path / "file"), "--live"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert re.fullmatch(
        r"error: --output .*file cannot be written .*: name another folder\n", found.stderr
    )


def test_live_points_make_sections(tmp_path):
    """A size of batch at which no request drafted is left out."""
    file, (_, of_lengths, _) = PointFile(tmp_path / POINTS), live_figures(tmp_path, FULL)
    sizes = [
        {"concurrency": 1, "mean_length": 4.0, "acceptance": 0.6},
        {"concurrency": 4, "mean_length": 2.5, "acceptance": 0.3},
        {"concurrency": 8, "mean_length": None, "acceptance": None},
    ]
    file.add(of_lengths.name, of_lengths.settings[1], {"sizes": sizes})
    (section,) = live_sections(file, live_figures(tmp_path, FULL))
    assert section.plots[0].lines[0].y == (4.0, 2.5)
    assert section.tables[0].rows == (("0.7", "4", "2.50", "0.30"), ("0.7", "1", "4.00", "0.60"))


def test_the_live_matrix_has_off_without_a_drafter_and_rates_around_what_it_can_serve():
    matrix = live_matrix({"chat": 2.0, "mixed": 3.0}, FULL)
    assert [variant.drafters for variant in matrix.variants if variant.policy == "off"] == ["none"]
    assert [cell.load.rate for cell in matrix.cells[:-1]] == [1.2, 1.8, 2.4]
    assert [step.rate for step in matrix.cells[-1].load.steps] == [1.8, 2.7, 3.6]
