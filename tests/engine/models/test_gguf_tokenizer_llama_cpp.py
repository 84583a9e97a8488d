"""The tokenizer made of a GGUF file gives llama.cpp's tokens, and ends where llama.cpp ends."""

import itertools
import random
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import TokenType
from gguf_vocabularies import Described, byte_level, sentencepiece, write
from llama_cpp_vocabulary import LlamaCppVocabulary
from tokenizer_lines import lines, prompts

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_splits import SPLITS
from smartspec.engine.models.gguf_tokenizer import make_tokenizer
from smartspec.engine.models.gguf_vocabulary import ENDS, read_vocabulary
from smartspec.engine.models.unsupported import UnsupportedModelError

pytestmark = pytest.mark.files
pytest.importorskip("xllamacpp")

# llama.cpp knows them; models that have them write no text, or are not read here
REFUSED = ("whitespace", "mmbert", "bloom", "chameleon", "falcon", "gemma4", "kimi-k2", "youtu")
SPECIAL = ["<|user|>", "<|end|>", "<|im_end|>", "<|endoftext|>", "<｜User｜>"]
FRAGMENTS = [
    *SPECIAL,
    "<s>",
    "</s>",
    "<unk>",
    "[bos]",
    "<tool>",
    " ",
    "\n",
    "\n\n",
    "hi ",
    "你",
    "<0x0A>",
    "12",
]


def special_lines(count: int, fragments: list[str]) -> list[str]:
    rng = random.Random(5)
    return ["".join(rng.choices(fragments, k=8)) for _ in range(count)]


def differences(
    path: Path, texts: list[str], adds: tuple[bool, ...] = (False, True)
) -> list[tuple]:
    tokenizer = make_tokenizer(read_vocabulary(path))
    found = []
    with LlamaCppVocabulary(path) as theirs:
        for text, add in itertools.product(texts, adds):
            ours, wanted = (
                tokenizer(text, add_special_tokens=add)["input_ids"],
                theirs.tokenize(text, add),
            )
            if ours != wanted:
                found.append(
                    (
                        text,
                        tokenizer.convert_ids_to_tokens(ours),
                        tokenizer.convert_ids_to_tokens(wanted),
                    )
                )
    return sorted(found, key=lambda each: len(each[0]))


@pytest.mark.parametrize("pre", [*SPLITS, None])
def test_every_split(tmp_path, pre):
    described = byte_level() if pre is None else byte_level().having(pre=pre)
    assert not differences(
        write(tmp_path / "tiny.gguf", described), [*lines(2, 3000), *prompts()], adds=(False,)
    )[:3]


def test_the_names_known_are_llama_cpps(tmp_path):
    for pre in (*SPLITS, *REFUSED):
        with LlamaCppVocabulary(write(tmp_path / "tiny.gguf", byte_level(300).having(pre=pre))):
            pass
    for pre in REFUSED:
        with pytest.raises(UnsupportedModelError, match=pre):
            read_vocabulary(write(tmp_path / "tiny.gguf", byte_level(300).having(pre=pre)))
    for pre in ("starcoder2", "llama", "qwen3", "nobody's"):
        path = write(tmp_path / "tiny.gguf", byte_level(300).having(pre=pre))
        with pytest.raises(ValueError, match="unknown pre-tokenizer"):
            LlamaCppVocabulary(path)
        with pytest.raises(UnsupportedModelError, match=f"tokenizer.ggml.pre is .{pre}"):
            read_vocabulary(path)


def test_every_letter_sign_and_space(tmp_path):
    """What the patterns' classes are: of a character between two a's and two signs, whether it
    merges with them.

    Left out are those that Python's Unicode does not know: later ones stand in one table and not
    yet in the other.
    """
    alphabet = [token for token in byte_level().tokens if len(token) == 1 and token not in "a!"]
    pairs = [
        pair for letter in alphabet for sign in "a!" for pair in ((sign, letter), (letter, sign))
    ]
    tokens = [*alphabet, "a", "!", *map("".join, pairs)]
    described = Described("gpt2", tuple(tokens), (1,) * len(tokens), tuple(map(" ".join, pairs)))
    path = write(
        tmp_path / "tiny.gguf", described.having(pre="qwen35", eos_token_id=0, bos_token_id=0)
    )
    tokenizer = make_tokenizer(read_vocabulary(path))
    different = []
    with LlamaCppVocabulary(path) as theirs:
        for point in (*range(1, 0xAC10), *range(0xF900, 0x11000)):
            text = f"a{chr(point)}a!{chr(point)}!"
            known = unicodedata.category(chr(point)) != "Cn" and not 0x4E10 < point < 0x9F00
            if known and theirs.tokenize(text) != tokenizer(text)["input_ids"]:
                different.append(point)
    assert different == []


def test_the_embedded_model():
    texts = [*lines(3, 3000), *prompts()]
    assert not differences(default_model_file(), texts)[:3]


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_special_and_added_tokens_written_as_text(tmp_path, kind):
    described = (
        kind()
        .plus(SPECIAL, TokenType.CONTROL)
        .plus(["<tool>", "   ", "\n\n\n"], TokenType.USER_DEFINED)
    )
    described = described.having(pre="qwen2") if described.model == "gpt2" else described
    texts = [*special_lines(1500, [*FRAGMENTS, "   ", "\n\n\n"]), *lines(4, 500)]
    assert not differences(write(tmp_path / "tiny.gguf", described), texts)[:3]


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_tokens_that_are_special_by_their_names(tmp_path, kind):
    """Whatever type the file gives them."""
    names = [
        "<|im_end|>",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "<|file_sep|>",
        "<|im_start|>",
    ]
    described = kind().plus(names, TokenType.NORMAL)
    described = described.having(pre="smollm") if described.model == "gpt2" else described
    assert not differences(
        write(tmp_path / "tiny.gguf", described), special_lines(500, [*names, " ", "hi", "\n"])
    )[:3]


@pytest.mark.parametrize(("bos", "eos"), list(itertools.product((None, True, False), repeat=2)))
@pytest.mark.parametrize("prefix", [None, True, False])
def test_what_is_added_to_a_text(tmp_path, bos, eos, prefix):
    said = {"add_bos_token": bos, "add_eos_token": eos, "add_space_prefix": prefix}
    values = {key: value for key, value in said.items() if value is not None}
    texts = ["", " ", "Hello", " Hello", "  a\n", "</s> a<s>b", "你好"]
    for described in (
        sentencepiece(),
        *(byte_level().having(pre=pre) for pre in ("llama3", "gpt-2")),
    ):
        assert not differences(write(tmp_path / "tiny.gguf", described.having(**values)), texts)


def test_phi_3_leaves_out_spaces_after_special_tokens(tmp_path):
    described = sentencepiece().plus(SPECIAL, TokenType.CONTROL)
    path = write(tmp_path / "tiny.gguf", described, name="Phi-3 mini 4k")
    assert not differences(path, special_lines(1000, FRAGMENTS))[:3]


def test_scores_in_any_order(tmp_path):
    described = sentencepiece()
    rng = random.Random(7)
    scores = tuple(rng.uniform(-20, 0) for _ in described.scores)
    path = write(tmp_path / "tiny.gguf", replace(described, scores=scores))
    assert not differences(path, list(lines(6, 1000)))[:3]


@pytest.mark.parametrize("kind", [TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL])
def test_the_tokens_that_end_a_generation(tmp_path, kind):
    plain = byte_level(300).having(pre="gpt-2")
    others = [
        "<|eom|>",
        "<|channel|>",
        "<|plamo:eos|>",
        "<|fim_pad|>",
        "[PAD]",
        "<|repo_name|>",
        "<|file_sep|>",
    ]
    rng = random.Random(3)
    names = sorted(ENDS) + others
    sets = [[name] for name in names]
    sets += [rng.sample(names, 5) for _ in range(30)]
    sets += [
        ["<|end|>", "<|return|>", "<|call|>"],
        ["<|end|>", "<|flush|>", "<|calls|>"],
        ["</s>", "<|tool_response>"],
    ]
    sets += [["</s>", "<|plamo:eos|>"]]
    for chosen in sets:
        if {"<|fim_pad|>", "[PAD]"} <= set(chosen):  # llama.cpp takes either
            continue
        described = plain.plus(chosen, kind)
        for values in (
            {},
            {"eot_token_id": 5, "eom_token_id": 6},
            {"fim_pad_token_id": 7, "fim_rep_token_id": 8},
        ):
            path = write(tmp_path / "tiny.gguf", described.having(**values))
            with LlamaCppVocabulary(path) as theirs:
                assert read_vocabulary(path).ends == theirs.ends(), (chosen, values)
