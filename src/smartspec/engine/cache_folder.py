"""The folder for what is made once on a machine: what is read out of models, profiles, compiled
kernels."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from smartspec.core.cache_folder import cache_folder as cache_folder


def why_untrusted(path: Path) -> str | None:
    """The reason why another user may have written what lies here, None where only this one and
    root can have.

    A file or folder must be theirs, no link, and not writable by others, its group included.
    Folders above must not let others put another in its place: writable by all only if sticky, as
    /tmp is, by a group only if it is this user's."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return f"{path} is a link"
    if facts.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user (number {facts.st_uid})"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others (mode {stat.S_IMODE(facts.st_mode):o})"
    for above in path.resolve().parents:
        facts = above.stat()
        is_own_group = facts.st_gid in (0, os.getegid())
        writers = facts.st_mode & (stat.S_IWOTH if is_own_group else stat.S_IWGRP | stat.S_IWOTH)
        if writers and not facts.st_mode & stat.S_ISVTX:
            return f"{above} can be written by others (mode {stat.S_IMODE(facts.st_mode):o})"
    return None


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, filled by `write` where it is not there yet.

    It is written beside its final place and renamed, so that what exists under this name is
    complete, and only this user can write it. Raises OSError with the remedy where the cache cannot
    be written.
    """
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as parent:
            made = Path(parent) / folder.name
            made.mkdir()
            write(made)
            for path in (made, *made.rglob("*")):
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
            try:
                made.rename(folder)
            except OSError:
                # otherwise another process finished first, and its copy is as good
                if not folder.exists():
                    raise
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise OSError(
            f"cannot write {folder.parent}: set SMARTSPEC_CACHE to a folder that can be written"
        ) from error
    return folder


def write_file(path: Path, text: str) -> None:
    """Write a file that only this user can write, beside its place, and rename it. Raises OSError
    where that cannot be."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".storing-") as folder:
        made = Path(folder) / path.name
        made.write_text(text, encoding="utf-8")
        made.chmod(0o644)
        made.replace(path)
