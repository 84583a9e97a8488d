"""A tiny target and the texts that it wrote, which every test here reads and none changes."""

import sys
from pathlib import Path

import pytest
from tiny_training import generate
from transformers import AutoTokenizer

sys.path.append(str(Path(__file__).parents[2] / "engine"))
from saved_models import save_model

TEMPLATE = (
    "{% for m in messages %}w3 w{{ 4 if m.role == 'user' else 6 }} {{ m.content }} <end> {% endfor "
    "%}"
)


@pytest.fixture(scope="session")
def target(tmp_path_factory) -> Path:
    sizes = {"num_hidden_layers": 6, "max_position_embeddings": 128, "initializer_range": 0.4}
    folder = save_model(tmp_path_factory.mktemp("target"), eos_token_id=[2], **sizes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE + "{% if add_generation_prompt %}w3 w6 {% endif %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts(target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    generate(target, folder, 250)
    return folder
