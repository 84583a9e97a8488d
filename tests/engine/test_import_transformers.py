"""What a server imports before its first request."""

import subprocess
import sys

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
