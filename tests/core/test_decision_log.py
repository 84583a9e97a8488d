"""The decision log on disk: readable at any time, never torn, never in the way of serving."""

import errno
import logging
from dataclasses import replace

import factories
import pytest
from factories import make_outcome, make_view

from smartspec.control import DecisionRecord, LogHeader
from smartspec.core.decision_log import FLUSH_RECORDS, DecisionLog

HEADER = LogHeader("some-model", "goodput", 4, (), {"format": 2})


def make_record(number: int = 0) -> DecisionRecord:
    return factories.make_record(make_outcome(make_view(2, now=float(number))))


@pytest.fixture
def log(tmp_path) -> DecisionLog:
    return DecisionLog(tmp_path / "log.jsonl")


def read_times(path) -> list[float]:
    header, *lines = path.read_text().splitlines()
    assert LogHeader.from_json(header) == HEADER
    return [DecisionRecord.from_json(line).view.now for line in lines]


class FullDisk:
    """A file that takes room bytes and no more."""

    def __init__(self, file, room: int):
        self.file = file
        self.room = room

    def write(self, data: bytes) -> int:
        data = data[: self.room]
        self.room -= len(data)
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_header_and_all_records_are_there_after_close(tmp_path):
    """Also in an empty file that a failed start has left."""
    (tmp_path / "log.jsonl").touch()
    log = DecisionLog(tmp_path / "log.jsonl")
    log.begin(HEADER)
    for number in range(FLUSH_RECORDS + 3):
        log.add(make_record(number))
    assert len(read_times(log.path)) == FLUSH_RECORDS, "full buffers are written at once"
    log.close()
    log.close()
    assert read_times(log.path) == list(range(FLUSH_RECORDS + 3))


def test_a_log_is_never_overwritten(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("precious\n")
    with pytest.raises(ValueError, match=r"log\.jsonl exists already: .*another file"):
        DecisionLog(path)
    assert path.read_text() == "precious\n"


@pytest.mark.parametrize("name", ["no/such/folder/log.jsonl", "."])
def test_a_path_that_cannot_be_written_is_an_error_at_start(tmp_path, name):
    with pytest.raises(ValueError, match=r"cannot write decision log .*another file"):
        DecisionLog(tmp_path / name)


def test_a_disk_that_is_full_at_start_is_an_error(log):
    log._file = FullDisk(log._file, room=10)
    with pytest.raises(ValueError, match="No space left on device"):
        log.begin(HEADER)
    assert log.path.read_bytes() == b""


def test_a_disk_that_fills_up_costs_records_and_a_warning_but_no_crash(log, caplog):
    log.begin(HEADER)
    log.add(make_record(1))
    log.flush()
    disk = log._file = FullDisk(log._file, room=700)
    with caplog.at_level(logging.WARNING):
        for number in range(2, 2 + 2 * FLUSH_RECORDS):
            log.add(make_record(number))
    assert log.num_lost == 2 * FLUSH_RECORDS
    assert [record.message for record in caplog.records] == [
        f"decision log {log.path}: [Errno 28] No space left on device; records will be missing "
        "from it"
    ]
    assert read_times(log.path) == [1.0], "no torn line"
    disk.room = 10**9
    log.add(make_record(1000))
    log.close()
    assert read_times(log.path) == [1.0, 1000.0], "it goes on when there is room again"
    assert (
        caplog.records[-1].message == f"decision log {log.path} lacks {2 * FLUSH_RECORDS} records"
    )


def test_records_that_json_cannot_hold_or_that_come_after_close_are_lost_but_harmless(log):
    log.begin(HEADER)
    log.add(replace(make_record(), goodput=float("inf")))
    log.add(make_record(2))
    log.close()
    assert log.num_lost == 1
    log.add(make_record(3))
    log.flush()
    assert log.num_lost == 2 and read_times(log.path) == [2.0]
