"""Tokenizers of GGUF files: the tokens are those that llama.cpp was seen to give, and what a file
says of them holds.

The comparison itself, for more lines and kinds: `test_gguf_tokenizer_llama_cpp.py`.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import TokenType
from gguf_vocabularies import Described, write
from record_tokens import LINES, RECORD, digest, recorded_vocabulary
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf import read_gguf_metadata

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_splits import SPLITS
from smartspec.engine.models.gguf_tokenizer import make_tokenizer
from smartspec.engine.models.gguf_vocabulary import Vocabulary, read_vocabulary, vocabulary_of
from smartspec.engine.models.unsupported import UnsupportedModelError

BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
TINY = Described("gpt2", (*BYTES, "ab"), (int(TokenType.NORMAL),) * 257, ("a b",)).having(
    pre="smollm"
)
PIECES = (
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "\u2581",
    "a",
    "b",
    "ab",
    "\u2581a",
)
KINDS = (
    TokenType.UNKNOWN,
    *[TokenType.CONTROL] * 2,
    *[TokenType.BYTE] * 256,
    *[TokenType.NORMAL] * 5,
)
SPM = Described("llama", PIECES, tuple(map(int, KINDS)), scores=(*[0.0] * 262, -2.0, -1.0))
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
)


def read(path: Path, described: Described, **options: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(read_vocabulary(write(path / "tiny.gguf", described, **options)))


@pytest.fixture(scope="module")
def embedded() -> Vocabulary:
    return read_vocabulary(default_model_file())


def test_the_embedded_models_tokens_are_llama_cpps(embedded):
    tokenizer = make_tokenizer(embedded)
    for text, expected in json.loads(RECORD.read_text(encoding="utf-8"))["embedded"]:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected, text
        assert tokenizer.decode(expected) == text
    assert embedded.ends == {0, 2, 4} and not embedded.adds_bos


def test_every_split_gives_llama_cpps_tokens(tmp_path):
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    expected = record["digests"]
    assert expected.keys() == SPLITS.keys()
    vocabulary = read_vocabulary(
        write(tmp_path / "tiny.gguf", recorded_vocabulary(record).having(pre="gpt-2"))
    )
    found: dict = {}
    for name in expected:
        split = SPLITS[name]
        if split not in found:
            backend = make_tokenizer(replace(vocabulary, split=split)).backend_tokenizer
            encodings = backend.encode_batch(list(LINES), add_special_tokens=False)
            found[split] = digest(encoding.ids for encoding in encodings)
        assert found[split] == expected[name], name
    assert len(set(expected.values())) == len({split.patterns for split in found}), (
        "lines that show every split"
    )


AGAIN = "convert the model again"


@pytest.mark.parametrize(
    ("described", "problem", "remedy"),
    [
        (replace(TINY, merges=()), "no tokenizer.ggml.merges", AGAIN),
        (replace(TINY, tokens=("a", "a", *BYTES[2:], "ab")), "ggml.tokens has 'a' twice", AGAIN),
        (replace(TINY, types=(1,) * 5), "token_type has 5 of 257", AGAIN),
        (replace(SPM, scores=(0.0,) * 5), "no tokenizer.ggml.scores for all", AGAIN),
        (
            TINY.having(add_bos_token=True),
            "add_bos_token is true, and it has no bos_token_id",
            AGAIN,
        ),
        (TINY.having(suppress_tokens=1), "key tokenizer.ggml.suppress_tokens is not", "another"),
        *(
            (TINY.having(pre=pre), f"tokenizer.ggml.pre is .{pre}", "use the model's folder")
            for pre in ("starcoder2", "nobody's", "whitespace")
        ),
        *(
            (replace(TINY, model=model), f"tokenizer.ggml.model is '{model}'", "use another file")
            for model in ("bert", "t5", "no_vocab")
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(tmp_path, described, problem, remedy):
    with pytest.raises(
        UnsupportedModelError, match=f"tiny.gguf is not served: .*{problem}.*{remedy}"
    ):
        read(tmp_path, described)


def test_scores_that_are_all_the_same_give_no_order_of_merges(tmp_path):
    words = [left + right for left in "abcdefghij" for right in "abcdefghij"]
    described = SPM.plus([*"cdefghij", *(word for word in words if word != "ab")], TokenType.NORMAL)
    with pytest.raises(UnsupportedModelError, match=r"scores are the same.*tokenizer\.model"):
        read(tmp_path, replace(described, scores=(-1000.0,) * len(described.scores)))


def test_a_file_without_a_split_says_so(tmp_path, caplog):
    described = replace(TINY, values=())
    assert (
        read(tmp_path, described)("ab1234")["input_ids"]
        == read(tmp_path, TINY.having(pre="default"))("ab1234")["input_ids"]
    )
    assert "tokenizer.ggml.pre" in caplog.text


def test_special_tokens_keep_their_ids_and_their_text(tmp_path):
    """DeepSeek's have letters that are in no byte's alphabet."""
    described = TINY.plus(["<｜User｜>"], TokenType.CONTROL).plus(
        ["<think>", "  "], TokenType.USER_DEFINED
    )
    tokenizer = read(tmp_path, described)
    text = "<｜User｜>ab  <think>"
    ids = tokenizer(text)["input_ids"]
    assert ids == [257, 256, 259, 258] and tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab  <think>"


def test_a_letter_named_as_padding_stays_a_letter(tmp_path):
    letter = BYTES.index("!")
    tokenizer = read(tmp_path, TINY.having(padding_token_id=letter, unknown_token_id=letter))
    assert tokenizer.decode(tokenizer("ab!")["input_ids"], skip_special_tokens=True) == "ab!"


def test_ids_that_are_none_are_ignored(tmp_path, caplog):
    path = write(
        tmp_path / "tiny.gguf", TINY.having(padding_token_id=999, eot_token_id=998, eos_token_id=5)
    )
    vocabulary = read_vocabulary(path)
    assert (vocabulary.padding, vocabulary.ends) == (None, {5})
    assert "padding_token_id 999" in caplog.text and "eot_token_id 998" in caplog.text


def test_sentencepiece_merges_by_scores_and_falls_back_to_bytes(tmp_path):
    def tokens(text: str, **values: object) -> list[str]:
        tokenizer = read(tmp_path, SPM.having(**values))
        return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    assert tokens("ab a") == ["<s>", "\u2581a", "b", "\u2581a"], "the better score merges first"
    assert tokens("é", add_bos_token=False) == ["\u2581", "<0xC3>", "<0xA9>"]
    assert tokens("ab", add_space_prefix=False, add_eos_token=True) == ["<s>", "ab", "</s>"]
    assert tokens("a</s>a") == ["<s>", "\u2581a", "</s>", "\u2581a"], (
        "after a special token a text begins anew"
    )


@pytest.mark.parametrize("template", [TEMPLATE, "{{ bos_token }}" + TEMPLATE])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_conversation_has_one_bos(tmp_path, template, adds_bos):
    described = TINY.plus(["[bos]", "<|end|>"], TokenType.CONTROL).having(
        bos_token_id=257, add_bos_token=adds_bos
    )
    tokenizer = read(tmp_path, described, template=template)
    talk = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert talk.count("[bos]") == int(adds_bos or template != TEMPLATE) and talk.endswith(
        "<|user|>ab<|end|>"
    )
    assert tokenizer("ab")["input_ids"] == ([257, 256] if adds_bos else [256])


def test_templates_by_their_names(tmp_path):
    path = write(tmp_path / "tiny.gguf", TINY)
    plain, _ = read_gguf_metadata(str(path), ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"))

    def templates(**said: str) -> tuple[str, str]:
        keys = {f"tokenizer.chat_template{name}": text for name, text in said.items()}
        tokenizer = make_tokenizer(vocabulary_of(plain | keys))
        return tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])

    assert templates(**{"": "D", ".tool_use": "T", ".rag": "R"}) == ("D", "T")
    assert templates(**{".tool_use": "T", ".rag": "R"}) == ("T", "T")
    assert templates(**{"": "D"}) == ("D", "D")
    assert make_tokenizer(vocabulary_of(plain)).chat_template is None


def test_what_is_kept_in_a_folder_is_the_same_tokenizer(tmp_path):
    described = SPM.plus(["<|end|>"], TokenType.CONTROL).having(add_eos_token=True)
    made = read(tmp_path, described, template=TEMPLATE, name="Phi-3")
    made.save_pretrained(tmp_path / "kept")
    kept = PreTrainedTokenizerFast.from_pretrained(tmp_path / "kept")
    assert json.loads(kept.backend_tokenizer.to_str()) == json.loads(
        made.backend_tokenizer.to_str()
    )
    text = "<s> ab<|end|>  a"
    assert (
        kept(text)["input_ids"] == made(text)["input_ids"]
        and kept.chat_template == made.chat_template
    )
