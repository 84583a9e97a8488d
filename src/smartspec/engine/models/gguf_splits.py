r"""The words that a byte-level tokenizer cuts a text into before it merges, by the name in
`tokenizer.ggml.pre`.

The table is llama.cpp's (src/llama-vocab.cpp, llm_tokenizer_bpe and llama_vocab::load): its names,
and what its patterns match, in the syntax of the tokenizers library. It has not the names that only
models of other architectures have than those that are read (gguf_config.py). llama.cpp does not
tell apart the categories of letters: where a model's own pattern says \p{Lu} or \p{Ll}, its pattern
says any letter, or any letter but a-z, and so do these.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """Patterns, each of which cuts what those before it left; what none matches stays as it lies
    between matches."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token is that token, whatever its merges give
    adds_bos: bool = False  # unless the file says otherwise


_SHORT = "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"  # I'm, we'll
_MAYBE_SHORT = f"(?:{_SHORT})?"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s+(?!\S)|\s+"
_ENDINGS = rf"\s*[\r\n]+|{_SPACES}"
_REST = rf"{_SIGNS}[\r\n]*|{_ENDINGS}"
_REST_AND_SLASHES = rf"{_SIGNS}[\r\n/]*|{_ENDINGS}"
_KANA_AND_HAN = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SIGNS}|{_SPACES}"
_LLAMA3 = rf"{_SHORT}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_SHORT}|{_LETTERS}|\p{{N}}|{_REST}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDINGS}"  # noqa: E501
_SIGN_AND_LETTERS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
)
_DEEPSEEK3 = rf"{_SIGN_AND_LETTERS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_ENDINGS}"


# Words that begin with large letters and go on with small ones.
_LARGE, _SMALL = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CASED_WORDS = (rf"{_BEFORE}{_LARGE}*{_SMALL}+", rf"{_BEFORE}{_LARGE}+{_SMALL}*")
_GPT4O = "|".join(
    [*(word + _MAYBE_SHORT for word in _CASED_WORDS), r"\p{N}{1,3}", _REST_AND_SLASHES]
)
# Latin, Greek, Cyrillic, Armenian and other letters that come in two sizes, as DeepSeek's files
# list them.
_CASED = (
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}\x{01C4}-"
    r"\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}"
    r"\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}"
    r"\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}"
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}"
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}"
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}"
    r"\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-"
    r"\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}"
    r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}"
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-"
    r"\x{1E943}"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+",
    r"\s+\z",
    r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}&&[^\s]]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}&&[^\s]]+",
    r"\p{N}",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# One line for each of llama.cpp's types: the names that files give it, and its split.
_TYPES = (
    ("default", Split((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Split((_LLAMA3,), ignores_merges=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe glm4 glm5 chatglm-bpe", Split((_LLAMA3,))),
    ("deepseek-llm", Split(_DEEPSEEK_LLM)),
    ("deepseek-coder", Split(_DEEPSEEK_CODER)),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        Split((r"\p{N}{1,3}", _KANA_AND_HAN, _DEEPSEEK3)),
    ),
    (
        "spark2_5",
        Split(
            (r"\p{N}", _KANA_AND_HAN, rf"{_SIGN_AND_LETTERS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}")
        ),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        Split((r"\p{N}", _GPT2)),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
        "modern-bert roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        Split((_GPT2,)),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 "
        "bailingmoe bailingmoe2 llada-moe",
        Split((_QWEN2,)),
    ),
    ("qwen35", Split((_QWEN35,))),
    ("viking", Split((_BLOOM, r"\p{N}"))),
    (
        "tekken",
        Split(
            ("|".join([*_CASED_WORDS, r"\p{N}", _REST_AND_SLASHES]),),
            ignores_merges=True,
            adds_bos=True,
        ),
    ),
    ("gpt-4o llama4 kanana2 talkie", Split((_GPT4O,))),
    (
        "k2-horizon",
        Split(
            (
                rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}\x{{200C}}\x{{200D}}]+|\p{{N}}{{1,3}}|{_REST}",
            )
        ),
    ),
    ("superbpe", Split((r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))"))),
    ("seed-coder", Split((rf"{_SHORT}|{_LETTERS}|\p{{N}}|{_SIGNS}|{_ENDINGS}",))),
    ("ufakzeka", Split((rf"{_LETTERS}|\p{{N}}|{_REST}",))),
    (
        "minicpm5",
        Split((r"\p{N}{1,3}", rf"{_SHORT}|{_LETTERS}|\p{{N}}+|{_REST}"), ignores_merges=True),
    ),
)
SPLITS = {name: split for names, split in _TYPES for name in names.split()}
