"""Finished answers in files, so that a server that starts again knows them: a file for each cache
salt.

The folder is for its owner alone (mode 0700), as answers are what users read. Files are named by
the SHA-256 of the API key (that of nothing without keys) and, where requests name a salt too, of
the whole salt. They hold token ids, int32, with END after each answer. What is torn by a crash is
the end of one answer.
"""

import fcntl
import hashlib
import json
import logging
import os
import stat
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smartspec.core.origin import key_of
from smartspec.drafters.finished_answers import END, MAX_TOKENS, NO_TOKENS
from smartspec.drafters.recycling import MAX_SALTS

FORMAT = 1
HEADER = "answers.json"
WIDTH = 4  # bytes of a token
MAX_BYTES = 4 * MAX_TOKENS * WIDTH  # of a file, which is then cut to what is remembered

logger = logging.getLogger(__name__)


class AnswerFiles:
    """tokenizer: its digest; vocab_size: of the model whose tokens these are.

    Raises ValueError naming the folder and the remedy where it holds something else, is open to
    others or in use; OSError where it cannot be made or read. What cannot be written later is said
    once in the log: answers are then kept no more, and all else goes on.
    """

    def __init__(self, folder: Path, tokenizer: str, vocab_size: int):
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor: int | None = _locked(folder)
        self._is_written = True
        try:
            _check_header(folder, tokenizer, vocab_size)
            self._vocab_size = vocab_size
            self._kept = _newest_of_each_key(folder)  # names of files that were not taken
            for name in self._kept:
                # to refuse a damaged one before anything else is done
                _read(folder / f"{name}.tokens", vocab_size)
        except BaseException:
            self.close()
            raise

    def take(self, cache_salt: str) -> np.ndarray:
        """Return what the file of a salt held at the start, int32 [n]; the next time nothing."""
        name = _name(cache_salt)
        if name not in self._kept:
            return NO_TOKENS
        self._kept.discard(name)
        try:
            return _read(self._path(cache_salt), self._vocab_size)
        except (OSError, ValueError) as error:  # since the start
            logger.warning("cannot read answers that were kept: %s", error)
            return NO_TOKENS

    def append(self, cache_salt: str, token_ids: Sequence[int]) -> None:
        """Keep an answer of that salt."""
        if not self._is_written:
            return
        path = self._path(cache_salt)
        try:
            with open(path, "ab", opener=_opened_for_owner) as file:
                file.write(array("i", (*token_ids, END)).tobytes())
                num_bytes = file.tell()
            if num_bytes > MAX_BYTES:
                _shorten(path)
        except OSError as error:
            self._is_written = False
            logger.warning(
                "cannot write %s (%s): answers are kept no more, until the next start",
                path,
                error.strerror,
            )

    def forget(self, cache_salt: str) -> None:
        self._path(cache_salt).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process use the folder; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._is_written = None, False

    def _path(self, cache_salt: str) -> Path:
        return self._folder / f"{_name(cache_salt)}.tokens"


def _name(cache_salt: str) -> str:
    names = [
        hashlib.sha256(text.encode()).hexdigest()
        for text in dict.fromkeys((key_of(cache_salt), cache_salt))
    ]
    return "-".join(names)


def _newest_of_each_key(folder: Path) -> set[str]:
    """Names of the files, as many of each key as are remembered. The others are deleted."""
    num_of_key: Counter[str] = Counter()
    kept = set()
    for path in sorted(folder.glob("*.tokens"), key=lambda path: -path.stat().st_mtime):
        key = path.stem.partition("-")[0]
        num_of_key[key] += 1
        if num_of_key[key] <= MAX_SALTS + 1:
            kept.add(path.stem)
        else:
            path.unlink()
    return kept


def _locked(folder: Path) -> int:
    """A descriptor of the folder; no other process gets one while it is open."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"{folder} can be used by others (mode {mode:o}): answers are private, chmod 700 "
            f"{folder}"
        )
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ValueError(
            f"{folder} is in use by another server: give each its own folder"
        ) from error
    return descriptor


def read_kept(folder: Path, tokenizer: str, vocab_size: int) -> list[np.ndarray]:
    """The content of each file of a folder, int32 [n] with END after each answer, also while a
    server appends to it. Raises ValueError naming the folder where it holds no answers, or those of
    another tokenizer."""
    if not (folder / HEADER).exists():
        raise ValueError(f"{folder} holds no answers: name the --datastore-memory of a server")
    _check_header(folder, tokenizer, vocab_size)
    return [
        _tokens(path, path.read_bytes(), vocab_size) for path in sorted(folder.glob("*.tokens"))
    ]


def _check_header(folder: Path, tokenizer: str, vocab_size: int) -> None:
    path, expected = (
        folder / HEADER,
        {"format": FORMAT, "tokenizer": tokenizer, "vocab_size": vocab_size},
    )
    if not any(folder.iterdir()):
        path.write_text(json.dumps(expected) + "\n", encoding="utf-8")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        raise ValueError(
            f"{folder} holds no answers of smartspec ({HEADER} is missing or damaged): name an "
            "empty or a new folder"
        ) from None
    if found != expected:
        raise ValueError(
            f"{folder} holds answers of another tokenizer or of another version: name another "
            "folder, or empty it"
        )


def _read(path: Path, vocab_size: int) -> np.ndarray:
    """The newest whole tokens of a file; ValueError naming it if they are none of the
    vocabulary."""
    content = path.read_bytes()
    if len(content) % WIDTH:
        os.truncate(path, len(content) // WIDTH * WIDTH)
    return _tokens(path, content, vocab_size)


def _tokens(path: Path, content: bytes, vocab_size: int) -> np.ndarray:
    tokens = np.frombuffer(content, dtype="<i4", count=len(content) // WIDTH)[-MAX_TOKENS:]
    if len(tokens) and (tokens.min() < END or tokens.max() >= vocab_size):
        raise ValueError(f"{path} is damaged, it holds numbers that are no tokens: delete it")
    return tokens


def _opened_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _shorten(path: Path) -> None:
    partial = path.with_suffix(".partial")
    with open(partial, "wb", opener=_opened_for_owner) as file:
        file.write(path.read_bytes()[-MAX_TOKENS * WIDTH :])
    partial.replace(path)
