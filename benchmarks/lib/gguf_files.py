"""Which keys of GGUF files are applied: compared with llama.cpp, by
tests/engine/gguf_comparison.py."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lib.models_page import write

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "engine"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "engine" / "models"))
from gguf_architectures import SPECS, write_gguf
from gguf_comparison import TEXT, cases, compare, our_logits
from llama_cpp import LlamaCpp
from test_gguf_llama_cpp import VALUES


def check(output: Path) -> None:
    """Compare what GGUF files say with llama.cpp, and write the page."""
    peer = LlamaCpp()
    rows = {}
    for name in sorted(SPECS):
        rows[name] = row_of(name, peer)
        print(name, rows[name], flush=True)
    peer.close()
    about = {"xllamacpp": version("xllamacpp"), "length": len(TEXT), "values": len(VALUES)}
    write(output, gguf=about | {"architectures": rows})


def row_of(architecture: str, peer) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        usual = our_logits(write_gguf(Path(folder) / "usual.gguf", SPECS[architecture]()))
        found = {
            name: compare(peer, spec, Path(folder), usual)
            for name, spec in cases(architecture).items()
        }
    errors = {name: result.error for name, result in found.items() if result.error is not None}
    refusals = [result.refusal for result in found.values() if result.refusal]
    return {
        "equal": list(errors),
        "difference": float(max(errors.values())),
        "refused": sorted({refusal.removeprefix(f"{architecture}.") for refusal in refusals}),
    }
