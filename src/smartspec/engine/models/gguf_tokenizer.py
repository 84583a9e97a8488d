"""The tokenizer that a GGUF file describes, built of the tokenizers library's parts and proved
equal to llama.cpp's.

The proof: tests/engine/models/test_gguf_tokenizer_llama_cpp.py.
"""

from collections import Counter

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from smartspec.engine.models.chat_templates import ChatTemplate, ChatTemplateError
from smartspec.engine.models.gguf_splits import Split
from smartspec.engine.models.gguf_vocabulary import Vocabulary
from smartspec.engine.models.unsupported import UnsupportedModelError

SPACE = "\u2581"  # what sentencepiece writes for a space


def make_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Make the tokenizer in transformers' form, with the chat templates. Raises
    UnsupportedModelError where none can be made."""
    tokenizer = (
        _sentencepiece(vocabulary)
        if vocabulary.split is None
        else _split_first(vocabulary, vocabulary.split)
    )
    tokens = vocabulary.tokens
    for ids, is_special in ((vocabulary.special, True), (vocabulary.added, False)):
        added = [_added(vocabulary, tokens[i], is_special) for i in sorted(ids)]
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(added)
    tokenizer.post_processor = _ends_of_texts(vocabulary)
    # One that is a token of texts must not become special by being named.
    ids = {
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "unk": vocabulary.unknown,
        "pad": vocabulary.padding,
    }
    named = {
        f"{kind}_token": tokens[i] if i in vocabulary.special else None for kind, i in ids.items()
    }
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named
    )
    if vocabulary.chat_templates:
        made.chat_template = _with_bos(made, dict(vocabulary.chat_templates), vocabulary.adds_bos)
    return made


def _ends_of_texts(vocabulary: Vocabulary) -> processors.TemplateProcessing:
    """bos before a text and eos after it, where the file says so."""
    bos = [("bos", vocabulary.bos)] if vocabulary.adds_bos else []
    eos = [("eos", vocabulary.eos)] if vocabulary.adds_eos else []
    parts = [name for name, _ in bos] + ["$A"] + [name for name, _ in eos]
    return processors.TemplateProcessing(
        single=parts, pair=[*parts, "$B:1"], special_tokens=[*bos, *eos]
    )


def _added(vocabulary: Vocabulary, token: str, is_special: bool) -> AddedToken:
    keeps = not vocabulary.strips_after or token in ("<unk>", "<s>", "<|endoftext|>")
    return AddedToken(token, normalized=False, special=is_special, rstrip=not keeps)


def _split_first(vocabulary: Vocabulary, split: Split) -> Tokenizer:
    """Texts are cut by the split's patterns, then pairs merge in the file's order."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(BPE(ids, list(vocabulary.merges), ignore_merges=split.ignores_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer that merges, of two neighbours whose text is a token, the pair whose token has
    the best score; what is no token is written in bytes. After a special token a text begins anew,
    with a space where the file says so."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = None if vocabulary.unknown is None else vocabulary.tokens[vocabulary.unknown]
    merges = _score_merges(vocabulary, ids)
    tokenizer = Tokenizer(BPE(ids, merges, byte_fallback=True, unk_token=unknown, fuse_unk=True))
    prefix, strip = [], []
    if vocabulary.adds_space_prefix:
        prefix, strip = [normalizers.Prepend(SPACE)], [decoders.Strip(" ", left=1)]
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _score_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every cut of every token into two, by the token's score. Equal scores stand in the order of
    the tokens, where llama.cpp takes what is leftmost in the text: where they are many the order of
    merges is not in the file."""
    ranked, scores = [], Counter()
    for token, i in ids.items():
        if i in vocabulary.bytes or i in vocabulary.special:
            continue
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        found = [(len(left), left, right) for left, right in cuts if left in ids and right in ids]
        ranked += [(-vocabulary.scores[i], i, *cut) for cut in found]
        if found and i not in vocabulary.added:
            scores[vocabulary.scores[i]] += 1
    if scores and 2 * max(scores.values()) > max(scores.total(), 100):
        raise UnsupportedModelError(
            "the GGUF file is not served: most of its tokenizer.ggml.scores are the same, so that "
            "the order of merges is not known: convert the model again with its tokenizer.model"
        )
    return [(left, right) for *_, left, right in sorted(ranked)]


def _with_bos(
    tokenizer: PreTrainedTokenizerFast, templates: dict[str, str], adds_bos: bool
) -> dict[str, str] | str:
    """A text gets its bos once: by the template, or before what a template without it writes."""
    if adds_bos and tokenizer.bos_token:
        bare = [name for name, text in templates.items() if not _writes_bos(tokenizer, text)]
        templates |= {name: "{{ bos_token }}" + templates[name] for name in bare}
    return templates["default"] if list(templates) == ["default"] else templates


def _writes_bos(tokenizer: PreTrainedTokenizerFast, template: str) -> bool:
    conversation = [{"role": "user", "content": "Hello"}]
    try:
        text = ChatTemplate(tokenizer).render(conversation, chat_template=template)
    except ChatTemplateError:  # what it wants is not known: it is left as it is
        return True
    return text.startswith(tokenizer.bos_token)
