"""What a GGUF file says is computed as llama.cpp computes it, or the file is refused by the name of
what it says."""

from collections.abc import Iterator

import pytest
from gguf_architectures import SPECS, Value, write_gguf
from gguf_comparison import cases, compare, known_keys, our_logits, tolerance
from llama_cpp import LlamaCpp, is_installed

pytestmark = [
    pytest.mark.files,
    pytest.mark.skipif(not is_installed(), reason="xllamacpp is not installed: make test-files"),
]
# Values of many kinds: whatever a key means, one of them is unusual.
VALUES: tuple[Value, ...] = (
    0,
    1,
    3,
    0.0,
    0.5,
    1.0,
    3.0,
    True,
    False,
    "yarn",
    "none",
    [1, 1],
    [1, 2],
    [True, False],
)
# Applied as transformers does; llama.cpp leaves it out, as it says when it loads such a file.
OURS_ALONE = {("phi3", "attention.sliding_window")}


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[LlamaCpp]:
    peer = LlamaCpp()
    yield peer
    peer.close()


@pytest.mark.parametrize("architecture", sorted(SPECS))
def test_logits_are_llama_cpps(llama_cpp, architecture, tmp_path):
    usual = our_logits(write_gguf(tmp_path / "usual.gguf", SPECS[architecture]()))
    found = {
        name: compare(llama_cpp, spec, tmp_path, usual)
        for name, spec in cases(architecture).items()
    }
    assert {name: result.alone for name, result in found.items() if result.alone} == {}
    errors = {name: result.error for name, result in found.items() if result.error is not None}
    assert errors["all keys unusual"] is not None
    assert {
        name: error for name, error in errors.items() if not error < tolerance(architecture)
    } == {}


@pytest.mark.parametrize("architecture", sorted(SPECS))
def test_no_key_changes_a_model_unseen(llama_cpp, architecture, tmp_path):
    """Every known key, with values of many kinds. Where only llama.cpp refuses a value, nothing may
    change."""
    spec = SPECS[architecture]()
    usual = our_logits(write_gguf(tmp_path / "usual.gguf", spec))
    wrong = {}
    for key in known_keys():
        if (architecture, key) in OURS_ALONE:
            continue
        for value in VALUES:
            found = compare(llama_cpp, spec.with_keys({key: value}), tmp_path, usual)
            if found.error is not None and not found.error < tolerance(architecture):
                wrong[f"{key} = {value!r}"] = found
    assert wrong == {}
