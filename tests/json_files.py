import json
from pathlib import Path


def read_json(path: Path):
    return json.loads(path.read_text())


def change_json(path: Path, changes: dict) -> None:
    """Of an object, these fields."""
    path.write_text(json.dumps(read_json(path) | changes))
