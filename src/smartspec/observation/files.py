"""Observations and cards on disk: written whole or not at all, one file for each start of a
server."""

import json
import os
import secrets
from pathlib import Path

from smartspec.observation.records import Observation

FOLDER = "observed"


def observation_path(cache: Path, instance_id: str, engine_index: int) -> Path:
    """The path at which an engine leaves its observation. Each start of vLLM has an id of its own,
    so that two servers on one folder do not meet."""
    return cache / "vllm" / FOLDER / f"{instance_id}-{engine_index}.json"


def write_json(path: Path, data: dict) -> None:
    """Whole or not at all; OSError where that is not possible, ValueError where a number is not
    finite."""
    write_whole(path, json.dumps(data, allow_nan=False).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all; OSError where that is not possible. Who may read it is as for all files
    of this user: other users of a machine have servers and commands, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".storing-{secrets.token_hex(8)}")
    try:
        with part.open("xb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> object:
    """ValueError names a file that cannot be read, or holds no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no JSON ({error})") from error


def read_observation(path: Path) -> Observation:
    """ValueError names a file that holds none."""
    data = read_json(path)
    try:
        return Observation.from_dict(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def newest_observation(cache: Path) -> Observation:
    """The observation that was written last, with those of the other engines of the same server.
    ValueError where there is none."""
    files = newest_files(cache)
    if not files:
        raise ValueError(
            f"{cache / 'vllm' / FOLDER} holds no observation: run `smartspec vllm serve MODEL "
            "--observe` and send requests"
        )
    return Observation.merged(list(map(read_observation, files)))


def newest_files(cache: Path) -> list[Path]:
    """The files of the server that wrote an observation last: one for each engine. OSError where
    they cannot be seen."""
    files = sorted((cache / "vllm" / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime)
    instances = [path.stem.rpartition("-")[0] for path in files]
    return [path for path, each in zip(files, instances, strict=True) if each == instances[-1]]
