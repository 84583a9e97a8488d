"""GGUF files that hold a vocabulary and nothing else."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gguf import TokenType
from gguf_architectures import GGUFSpec, Value, write_gguf
from tokenizer_lines import lines
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SPACE = "\u2581"


@dataclass(frozen=True)
class Described:
    """What a file says of its tokenizer; values: further keys of tokenizer.ggml, or whole ones with
    a dot."""

    model: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    values: tuple[tuple[str, object], ...] = ()

    def having(self, **values: object) -> "Described":
        return replace(self, values=(*self.values, *values.items()))

    def plus(self, tokens: list[str], kind: int) -> "Described":
        return replace(
            self,
            tokens=(*self.tokens, *tokens),
            types=(*self.types, *[int(kind)] * len(tokens)),
            scores=(*self.scores, *[0.0] * len(tokens)) if self.scores else (),
        )

    def id(self, token: str) -> int:
        return self.tokens.index(token)


def write(
    path: Path, described: Described, name: str = "tiny", template: str | None = None
) -> Path:
    tokenizer: dict[str, Value] = {
        "ggml.model": described.model,
        "ggml.tokens": [*described.tokens],
        "ggml.token_type": [*described.types],
        "ggml.scores": [*described.scores],
        "ggml.merges": [*described.merges],
        "chat_template": template or [],
    } | {f"ggml.{key}": value for key, value in described.values}
    keys = {
        "general.name": name,
        "block_count": 1,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 32,
        "attention.head_count": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    said = {key: value for key, value in tokenizer.items() if value != []}
    return write_gguf(path, GGUFSpec("llama", {}, keys), tokenizer=said)


@cache
def byte_level(size: int = 6000) -> Described:
    """Merges go across words, so that every cut shows in the tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokens, merges = _train(
        tokenizer, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet)
    )
    described = Described("gpt2", tokens, (int(TokenType.NORMAL),) * len(tokens), merges)
    described = described.plus(["[bos]", "[end]"], TokenType.CONTROL)
    return described.having(bos_token_id=described.id("[bos]"), eos_token_id=described.id("[end]"))


@cache
def sentencepiece(size: int = 3000) -> Described:
    """Scores are minus the rank, as sentencepiece's BPE writes them; user-defined tokens are spelt
    with spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokens, _ = _train(tokenizer, trainers.BpeTrainer(vocab_size=size, limit_alphabet=400))
    start = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    described = Described(
        "llama",
        (*start, *tokens),
        (*map(int, kinds), *[int(TokenType.NORMAL)] * len(tokens)),
        scores=(*[0.0] * len(start), *[-float(rank) for rank in range(len(tokens))]),
    )
    return described.having(bos_token_id=1, eos_token_id=2, unknown_token_id=0)


def _train(
    tokenizer: Tokenizer, trainer: trainers.BpeTrainer
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    trainer.show_progress = False
    tokenizer.train_from_iterator(lines(seed=1, count=3000, special=False), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return tuple(sorted(model["vocab"], key=model["vocab"].get)), tuple(
        " ".join(pair) for pair in model["merges"]
    )
