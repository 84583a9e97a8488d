"""The list of what transformers has, read from the cache folder.

transformers is imported lazily: it searches the source of all its models for the names they define, twice, which takes
as long as half of torch. The list is the same until transformers is installed anew.
"""

import hashlib
import importlib.util
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

from smartspec.engine.cache_folder import cache_folder, why_untrusted

PACKAGE = "transformers"
Index = dict[frozenset, dict[str, set[str]]]  # by the libraries they need, modules and the names in them


def import_indexed() -> None:
    """Import transformers with a kept list of its models, or with its own search where there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    version = metadata.version(PACKAGE)
    if spec is None or spec.origin is None or spec.loader is None or "dev" in version:
        return
    package = importlib.util.module_from_spec(spec)
    package.__version__ = version  # what its utilities read of it
    sys.modules[PACKAGE] = package
    try:
        from transformers.utils import import_utils

        _keep_index(import_utils, Path(spec.origin).parent / "models", version)
        spec.loader.exec_module(package)
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        raise


def _keep_index(import_utils: ModuleType, models: Path, version: str) -> None:
    """Let transformers take the list of its models from the cache folder."""
    search = import_utils.define_import_structure
    path = cache_folder() / "transformers" / f"{_digest(models, version)}.json"

    def define_import_structure(module_path: str, prefix: str | None = None) -> Index:
        if Path(module_path) not in (models, models / "__init__.py"):
            return search(module_path, prefix)
        index = _read(path)
        if index is None:
            index = search(str(models))
            _write(path, index)
        before = "" if prefix is None else f"{prefix}."
        return {needs: {before + name: set(has) for name, has in found.items()} for needs, found in index.items()}

    import_utils.define_import_structure = define_import_structure


def _digest(models: Path, version: str) -> str:
    """The digest of the version and of when files last came into a model's folder, or left it."""
    times = sorted((path.name, path.stat().st_mtime_ns) for path in models.iterdir() if path.is_dir())
    return hashlib.sha256(repr((version, str(models), times)).encode()).hexdigest()[:16]


def _read(path: Path) -> Index | None:
    try:
        if why_untrusted(path) is not None:
            return None
        index = json.loads(path.read_text(encoding="utf-8"))
        return {frozenset(needs): {name: set(has) for name, has in found.items()} for needs, found in index}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, index: Index) -> None:
    rows = [[sorted(needs), {name: sorted(has) for name, has in found.items()}] for needs, found in index.items()]
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".storing-") as folder:
            made = Path(folder) / path.name
            made.write_text(json.dumps(rows), encoding="utf-8")
            made.chmod(0o644)
            made.replace(path)
    except OSError:
        pass  # the next start searches again
