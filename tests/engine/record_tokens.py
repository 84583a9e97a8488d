"""Records llama.cpp's tokens for `test_gguf_tokenizer.py`, which runs without it.

    python tests/engine/record_tokens.py

Needs `pip install xllamacpp` (`make test-files` installs it). A small vocabulary is written under
every `tokenizer.ggml.pre` that we know, and the tokens that llama.cpp gives for the same lines are
kept as a digest.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gguf_vocabularies import Described, byte_level, write
from llama_cpp_vocabulary import LlamaCppVocabulary
from tokenizer_lines import lines
from tokenizers.pre_tokenizers import ByteLevel

from smartspec.engine.models.default_model import default_model_file
from smartspec.engine.models.gguf_splits import SPLITS

RECORD = Path(__file__).with_name("recorded_tokens.json")
LINES = (*lines(8, 150), "'the 'mir 'reader 'llama 'dont")
NUM_TOKENS = 2500
TEXTS = (
    "How to bake bread:\n\n1. Mix the flour and water.\n\n2. Knead the dough for 10 minutes.",
    "x =  12\n  34\n\tdef f():\r\n        return 0\n",
    "Year 2024, 3rd of 10; it's 1,234,567.89 €",
    "你好，世界 2024年 こんにちは 😀👍🏽 e\u0301",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><reponame> <|im_end>",
    " leading,  two,\u00a0no-break and trailing  ",
)


def digest(tokens: Iterable[list[int]]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:16]


def recorded_vocabulary(record: dict) -> Described:
    """Its merges go across words, so that every cut shows."""
    merges = tuple(record["merges"])
    tokens = (
        *sorted(ByteLevel.alphabet()),
        *dict.fromkeys(merge.replace(" ", "") for merge in merges),
    )
    return Described("gpt2", tokens, (1,) * len(tokens), merges).having(
        bos_token_id=1, eos_token_id=2
    )


def main() -> None:
    with LlamaCppVocabulary(default_model_file()) as theirs:
        embedded = [[text, theirs.tokenize(text)] for text in TEXTS]
    record: dict = {"embedded": embedded, "merges": byte_level(NUM_TOKENS).merges, "digests": {}}
    described = recorded_vocabulary(record)
    with tempfile.TemporaryDirectory() as folder:
        for pre in SPLITS:
            with LlamaCppVocabulary(
                write(Path(folder, "tiny.gguf"), described.having(pre=pre))
            ) as theirs:
                record["digests"][pre] = digest(map(theirs.tokenize, LINES))
    RECORD.write_text(json.dumps(record, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
