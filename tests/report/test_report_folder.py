"""What has been measured stays; what another matrix or a broken file holds is refused."""

import pytest
from report_cases import CHAT, matrix, measured, record

from smartspec.report.folder import MATRIX, RUNS, Folder, digested
from smartspec.report.matrix import Run

HERE = {"cpu": "a cpu", "cores": "2", "commit": "abc"}
RUN = measured("off", CHAT, 0, [1.0])


def opened(path, of=None, environment=HERE) -> Folder:
    return Folder.open(path, of or matrix(), environment, "smartspec report")


def test_runs_come_back_as_they_were(tmp_path):
    folder = opened(tmp_path / "out")
    folder.add(measured("off", CHAT, 0, [1.0, 2.0]))
    folder.add(measured("goodput", CHAT, 0, [], failure="it died", counters=None))
    again = opened(tmp_path / "out")
    assert again.runs == folder.runs
    good, bad = again.runs
    assert again.valid() == {good.key: good} and again.failed() == {bad.key: bad}
    assert good.commit == "abc" and again.command == "smartspec report"
    assert good.summary.speculation.acceptance_rate == 0.5


def test_a_round_that_was_gone_through_lacks_its_failures_and_another_all_of_it(tmp_path):
    folder = opened(tmp_path / "out")
    runs = [Run(name, CHAT, 0) for name in ("off", "fixed:3", "goodput")]
    assert folder.missing(runs) == runs
    folder.add(RUN)
    assert folder.missing(runs) == runs
    folder.add(measured("fixed:3", CHAT, 0, [1.0]))
    folder.add(measured("goodput", CHAT, 0, [], failure="it died"))
    assert folder.missing(runs) == runs[2:]
    folder.add(measured("goodput", CHAT, 0, [1.0]))
    assert folder.missing(runs) == [] and not folder.failed()


def test_a_last_line_that_was_cut_off_is_dropped(tmp_path):
    folder = opened(tmp_path)
    folder.add(RUN)
    whole = (tmp_path / RUNS).read_bytes()
    (tmp_path / RUNS).write_bytes(whole + whole[:50])
    assert len(opened(tmp_path).runs) == 1
    assert (tmp_path / RUNS).read_bytes() == whole


def test_other_bad_lines_are_named(tmp_path):
    opened(tmp_path).add(RUN)
    with open(tmp_path / RUNS, "ab") as lines:
        lines.write(b'{"variant": "off"}\n')
    with pytest.raises(ValueError, match=rf"{RUNS}, line 2 is no run .*: delete the line"):
        opened(tmp_path)


def test_another_matrix_is_refused_by_what_differs(tmp_path):
    opened(tmp_path, matrix(cells=[CHAT]))
    opened(tmp_path).add(RUN)  # no run had been measured before
    differing = r"another matrix \(cells: code, 2 at once only there. max_tokens: 64 there, 9"
    with pytest.raises(ValueError, match=differing):
        opened(tmp_path, matrix(cells=[CHAT], max_tokens=9))
    machine = r"another machine \(cpu a cpu there, another here\): give another --output"
    with pytest.raises(ValueError, match=machine):
        opened(tmp_path, environment=HERE | {"cpu": "another"})
    opened(tmp_path, environment=HERE | {"commit": "later"})


def test_a_folder_of_other_files_and_a_damaged_one_are_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("x")
    with pytest.raises(ValueError, match="holds other files and no report: give another --output"):
        opened(tmp_path)
    opened(tmp_path / "b").add(RUN)
    for text, problem in (("{", "is damaged"), ('{"a": 1}', "is not of a report")):
        (tmp_path / "b" / MATRIX).write_text(text)
        with pytest.raises(ValueError, match=problem):
            opened(tmp_path / "b")


def test_what_cannot_be_written_is_said_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"cannot write to .*file.*: give another --output"):
        opened(tmp_path / "file" / "out")
    folder = opened(tmp_path / "full")
    (tmp_path / "full" / RUNS).unlink()
    (tmp_path / "full" / RUNS).symlink_to("/dev/full")
    full = r"cannot write to .*No space left.*: make room, then the same command goes on"
    with pytest.raises(ValueError, match=full):
        folder.add(RUN)
    assert not folder.runs


def test_texts_are_kept_as_digests():
    one, same, other = (digested(record(0, 1.0, text)).text for text in ("abc", "abc", "abd"))
    assert one == same != other and "abc" not in one and len(one) == 12
