"""What a server imports before its first request."""

import os
import subprocess
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401
from transformers.utils import is_torch_distributed_available

from smartspec.engine.import_transformers import import_transformers

SCRIPT = """
import sys
from smartspec.engine.import_transformers import import_transformers
import_transformers()
import transformers
assert transformers.utils.is_torch_distributed_available() is False
import smartspec.engine.runtime.build, smartspec.server.app
from transformers import AutoModelForCausalLM, LlamaConfig
import torch
config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model = AutoModelForCausalLM.from_config(config)
with torch.inference_mode():
    model(torch.tensor([[1, 2]]))
print(*(name for name in ("sympy", "torch._dynamo.convert_frame", "torch.distributed.tensor") if name in sys.modules))
print(hasattr(torch._dynamo, "convert_frame"), torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1)).item())
"""


def test_a_server_does_without_torchs_compiler_until_somebody_uses_it():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines() == ["", "True 1.0"], result.stderr


def test_nothing_is_changed_where_transformers_is_there_already():
    before = sys.modules["torch._dynamo"]
    import_transformers()
    assert sys.modules["torch._dynamo"] is before and is_torch_distributed_available()


NAMES = """
import hashlib, sys
{first}
import transformers, transformers.models
from transformers.models.qwen3 import Qwen3ForCausalLM
for module in (transformers, transformers.models):
    print(hashlib.sha256(repr(sorted(map(str, module._class_to_module.items()))).encode()).hexdigest())
print(transformers.__version__, Qwen3ForCausalLM.__module__)
"""
OURS = "from smartspec.engine.import_transformers import import_transformers; import_transformers()"


def names(cache: Path, first: str = OURS) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", NAMES.format(first=first)],
        capture_output=True, text=True, timeout=120, env=os.environ | {"SMARTSPEC_CACHE": str(cache)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_the_kept_list_of_models_is_transformers_own(tmp_path: Path):
    expected = names(tmp_path, first="")
    assert names(tmp_path) == expected  # searched, and kept
    (file,) = (tmp_path / "transformers").glob("*.json")
    kept = file.read_text()
    assert names(tmp_path) == expected  # read
    file.write_text("[[[")
    assert names(tmp_path) == expected
    assert file.read_text() == kept


def test_a_second_start_does_not_search_for_models(tmp_path: Path):
    expected = names(tmp_path)
    (file,) = (tmp_path / "transformers").glob("*.json")
    file.write_text(file.read_text().replace('"Qwen3ForCausalLM"', '"Qwen3Renamed"'))
    changed = names(tmp_path)
    assert changed[0] != expected[0] and changed[1] != expected[1]
