"""What is made once: complete or not there, by whichever process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smartspec.engine.cache_folder import make_once


def write(folder: Path) -> None:
    (folder / "content").touch()


def test_it_is_made_once(tmp_path):
    folder = tmp_path / "cache" / "made"
    assert make_once(folder, write) == folder
    assert make_once(folder, lambda folder: pytest.fail("made twice")) == folder
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(tmp_path / "cache" / "made", interrupted)
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_at_the_same_time_end_in_one_folder(tmp_path):
    both_began = threading.Barrier(2, timeout=60)

    def write_together(folder: Path) -> None:
        both_began.wait()
        write(folder)

    folder = tmp_path / "made"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: make_once(folder, write_together), range(2)))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert [path.name for path in folder.iterdir()] == ["content"]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    with pytest.raises(OSError, match="SMARTSPEC_CACHE"):
        make_once(tmp_path / "cache" / "made", write)
