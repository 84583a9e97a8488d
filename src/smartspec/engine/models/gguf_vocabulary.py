"""The tokens of a GGUF file, and what it leaves to its reader, as llama.cpp reads it.

Source: llama.cpp, src/llama-vocab.cpp, llama_vocab::impl::load.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf import TokenType
from transformers.integrations.gguf import read_gguf_metadata

from smartspec.engine.models.gguf_splits import SPLITS, Split
from smartspec.engine.models.unsupported import UnsupportedModelError

logger = logging.getLogger(__name__)

MODELS = ("gpt2", "llama")  # of tokenizer.ggml.model
# Special tokens that end a turn, a call of a tool or a text, in every model that has them
# (llama.cpp, src/llama-vocab.cpp, special_eog_ids).
ENDS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|ifm|im_end|>", "<|end|>", "<|return|>", "<|call|>",
    "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<|endoftext|>",
    "<|end_of_text|>", "</s>", "<eos>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "[e~[", "<｜end▁of▁sentence｜>",
}  # fmt: skip
# Tokens between the parts of a file that is to be filled in, and which of them end a text.
_NAMED_SPECIAL = {
    "fim_pre": (
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> "
        "<|prefix|>"
    ),
    "fim_suf": (
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> "
        "<|suffix|>"
    ),
    "fim_mid": (
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> "
        "<|middle|>"
    ),
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|> <|plamo:file_separator|>",
}
_FIM_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # of files older than the keys
# Keys under tokenizer.ggml that are read here, and those that change no token of such a tokenizer.
_READ = (
    "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id eom_token_id "
    "unknown_token_id padding_token_id add_bos_token add_eos_token add_space_prefix "
    "fim_pad_token_id fim_rep_token_id fim_sep_token_id"
)
_HARMLESS = (
    "seperator_token_id separator_token_id cls_token_id mask_token_id add_sep_token "
    "fim_pre_token_id fim_suf_token_id fim_mid_token_id prefix_token_id suffix_token_id "
    "middle_token_id token_type_count remove_extra_whitespaces normalizer.lowercase "
    "normalizer.strip_accents precompiled_charsmap"
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a GGUF file, and the rules for them."""

    tokens: tuple[str, ...]  # by id, without two that are the same
    # how a byte-level tokenizer cuts, None of a sentencepiece one
    split: Split | None
    merges: tuple[tuple[str, str], ...]  # pairs, best first
    scores: tuple[float, ...]  # of each token, of a sentencepiece one
    # ids of tokens that are found in a text as they are written and have no text in an answer
    special: frozenset[int]
    added: frozenset[int]  # ids of such tokens that do have text in an answer
    bytes: frozenset[int]  # ids of tokens of single bytes
    # bos, eos, unknown, padding: ids
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: frozenset[int]  # ids that end an answer
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool
    strips_after: bool  # white space after special tokens is left out
    chat_templates: Mapping[str, str]


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises UnsupportedModelError that names the value and the remedy for a tokenizer that we do
    not have."""
    arrays = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    metadata, _ = read_gguf_metadata(str(path), arrays)
    try:
        return vocabulary_of(metadata)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path.name} is not served: {error}") from None


def vocabulary_of(metadata: Mapping[str, object]) -> Vocabulary:
    """The same of a file's values by their keys."""
    prefix = "tokenizer.ggml."
    said = {key.removeprefix(prefix): value for key, value in metadata.items()}
    model = said.get("model")
    if model not in MODELS:
        raise UnsupportedModelError(
            f"its tokenizer.ggml.model is {model!r}, known are {', '.join(map(repr, MODELS))}: use "
            "another file of this model, or its folder of safetensors with a tokenizer.json"
        )
    found = {key.removeprefix(prefix) for key in metadata if key.startswith(prefix)}
    if unknown := sorted(found.difference(_READ.split(), _HARMLESS.split())):
        raise UnsupportedModelError(
            f"its key {prefix}{unknown[0]} is not known here: use another file of this model"
        )
    tokens = _tokens(said)
    split = None if model == "llama" else _split(said)
    special, added, byte_ids = _kinds(said, tokens)
    ids = {
        key: _id(said, f"{key}_token_id", len(tokens))
        for key in ("bos", "eos", "unknown", "padding")
    }
    defaults = _SENTENCEPIECE_IDS if model == "llama" else {}
    ids |= {key: i for key, i in defaults.items() if ids[key] is None and i < len(tokens)}
    return Vocabulary(
        tokens=tokens,
        split=split,
        merges=_merges(said) if split else (),
        scores=() if split else _scores(said, tokens),
        special=special,
        added=added,
        bytes=byte_ids,
        **ids,
        ends=_ends(said, tokens, ids["eos"]),
        adds_bos=_adds(said, "bos", split is None or split.adds_bos, ids),
        adds_eos=_adds(said, "eos", False, ids),
        adds_space_prefix=bool(said.get("add_space_prefix", True)) and split is None,
        strips_after=any(
            name in str(metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3")
        ),
        chat_templates=_chat_templates(metadata),
    )


def named_ends(ids: Mapping[str, int]) -> set[int]:
    """The tokens among these that end a turn by their name; ids: by their text. As llama.cpp: what
    ends a message of several in a turn does not end the turn, and Gemma's </s> is no end."""
    names = ENDS & ids.keys()
    if "<|end|>" in names and (
        {"<|return|>", "<|call|>"} <= names
        or ("<|flush|>" in names and {"<|call|>", "<|calls|>"} & names)
    ):
        names -= {"<|end|>"}
    if "<|tool_response>" in ids:
        names -= {"</s>"}
    return {ids[name] for name in names}


def _tokens(said: Mapping) -> tuple[str, ...]:
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(said.get("tokens") or ()))
    if not tokens:
        raise UnsupportedModelError("it has no tokenizer.ggml.tokens: convert the model again")
    if len(set(tokens)) < len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))
        raise UnsupportedModelError(
            f"its tokenizer.ggml.tokens has {twice!r} twice: convert the model again"
        )
    return tokens


def _split(said: Mapping) -> Split:
    pre = said.get("pre")
    if not pre:
        logger.warning(
            "the file has no tokenizer.ggml.pre: its text is cut as llama.cpp's default does, "
            "which may not be how the model was trained: better convert the model again"
        )
        pre = "default"
    if pre not in SPLITS:
        raise UnsupportedModelError(
            f"its tokenizer.ggml.pre is {pre!r}, and how that cuts a text is not known here: use "
            "the model's folder of safetensors with a tokenizer.json, or a file with one of "
            f"{', '.join(SPLITS)}"
        )
    return SPLITS[pre]


def _merges(said: Mapping) -> tuple[tuple[str, str], ...]:
    texts = said.get("merges")
    if not texts:
        raise UnsupportedModelError("it has no tokenizer.ggml.merges: convert the model again")
    pairs = [(text[:1] + text[1:].partition(" ")[0], text[1:].partition(" ")[2]) for text in texts]
    return tuple(dict.fromkeys(pairs))


def _scores(said: Mapping, tokens: tuple[str, ...]) -> tuple[float, ...]:
    scores = said.get("scores")
    if not isinstance(scores, list) or len(scores) < len(tokens):
        raise UnsupportedModelError(
            "it has no tokenizer.ggml.scores for all of its tokens: convert the model again"
        )
    return tuple(map(float, scores))


def _kinds(
    said: Mapping, tokens: tuple[str, ...]
) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Special, added and byte tokens. A token whose name says that it is special is, whatever its
    type."""
    types = said.get("token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) < len(tokens):
        raise UnsupportedModelError(
            f"its tokenizer.ggml.token_type has {len(types)} of {len(tokens)} tokens: convert the "
            "model again"
        )
    ids = {token: i for i, token in enumerate(tokens)}
    kinds = {kind: {i for i in range(len(tokens)) if types[i] == kind} for kind in TokenType}
    names = {name for names in _NAMED_SPECIAL.values() for name in names.split()} | ENDS
    special = (
        kinds[TokenType.CONTROL]
        | kinds[TokenType.UNKNOWN]
        | {ids[name] for name in names & ids.keys()}
    )
    if {"<|tool_response>", "</s>"} <= ids.keys():
        special -= {ids["</s>"]}
    return (
        frozenset(special),
        frozenset(kinds[TokenType.USER_DEFINED] - special),
        frozenset(kinds[TokenType.BYTE]),
    )


def _id(said: Mapping, key: str, count: int) -> int | None:
    value = said.get(key)
    if isinstance(value, int) and not 0 <= value < count:
        logger.warning(
            "tokenizer.ggml.%s %d is not one of its %d tokens: it is ignored", key, value, count
        )
        return None
    return value


def _ends(said: Mapping, tokens: tuple[str, ...], eos: int | None) -> frozenset[int]:
    ids = {token: i for i, token in enumerate(tokens)}
    found = [eos, *(_id(said, f"{key}_token_id", len(tokens)) for key in ("eot", "eom"))]
    for kind in _FIM_ENDS:
        named = next((i for name, i in ids.items() if name in _NAMED_SPECIAL[kind].split()), None)
        given = _id(said, f"{kind}_token_id", len(tokens))
        found.append(named if given is None else given)
    ends = {i for i in found if i is not None} | named_ends(ids)
    return frozenset(ends)


def _adds(said: Mapping, kind: str, default: bool, ids: Mapping[str, int | None]) -> bool:
    """True if bos or eos is added to a text."""
    adds = bool(said.get(f"add_{kind}_token", default))
    if adds and ids[kind] is None and f"add_{kind}_token" in said:
        raise UnsupportedModelError(
            f"its tokenizer.ggml.add_{kind}_token is true, and it has no {kind}_token_id: convert "
            "the model again"
        )
    return adds and ids[kind] is not None


def _chat_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """The chat templates by their names; "default" is the one without, else that for tools, else
    the first."""
    key = "tokenizer.chat_template"
    named = {
        name.removeprefix(f"{key}."): text
        for name, text in metadata.items()
        if name.startswith(f"{key}.")
    }
    default = metadata.get(key) or named.get("tool_use") or next(iter(named.values()), None)
    return {"default": default, **named} if default else {}
