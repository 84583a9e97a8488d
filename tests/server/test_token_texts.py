"""What is said of single tokens beside their log-probabilities: text, bytes, place. The fake model
says the prompt back, so the answer's text is known."""

import pytest
from fake_core import OTHER_TOKEN_ID
from fake_server import user, whole_and_streamed
from tokenizers import AddedToken, Tokenizer, decoders, models

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.text.token_texts import TokenTexts

TEXTS = [
    "Ünïcode: 🎉👩‍👩‍👧 done",
    "你好，世界 — 한국어 🇩🇪!",
    "√2 ≈ 1.41 ∑∂ √√",
    "plain text",
    "a\u0300\u0301 ẞ\u200d\n\n\t🎉🎉",
]
ENTRY = TokenLogprobs(-0.5)


def completion(server, stream=False, **body):
    """Text and log-probabilities of a completion of the fake model, joined over the chunks of a
    stream."""
    answer = server.completion(max_tokens=200, stream=stream, **body)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    found = [choice.logprobs for choice in choices if choice.logprobs]
    parts = {
        name: [value for logprobs in found for value in getattr(logprobs, name) or ()]
        for name in names
    }
    return "".join(choice.text for choice in choices), parts


def check_offsets(text: str, tokens: list[str], offsets: list[int]) -> None:
    """Every token's text stands where its offset says, or as much of it as was not cut off."""
    assert offsets == sorted(offsets) and all(0 <= offset <= len(text) for offset in offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        rest = text[offset:]
        assert rest.startswith(token) or token.startswith(rest) or not token, (token, rest[:20])


@whole_and_streamed
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_join_to_the_text(either_server, stream, text):
    found = either_server.answered(
        stream,
        messages=[user(text)],
        max_tokens=400,
        logprobs=True,
        top_logprobs=2,
        stop="<|im_start|>assistant",
    )
    # Special tokens have no text in the answer, but a name.
    written = [token for token in found.tokens if not token.token.startswith("<|")]
    assert b"".join(bytes(token.bytes) for token in written) == found.text.encode()
    assert "".join(token.token for token in written) == found.text
    for token in found.tokens:
        likeliest = token.top_logprobs[0]
        assert token.bytes == likeliest.bytes and token.logprob == likeliest.logprob == -0.5


@whole_and_streamed
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_point_into_the_text(either_server, stream, text):
    said, parts = completion(either_server, stream, prompt=text, logprobs=2)
    assert said == text == "".join(parts["tokens"])
    check_offsets(text, parts["tokens"], parts["text_offset"])
    assert set(parts["token_logprobs"]) == {-0.5}
    for token, top in zip(parts["tokens"], parts["top_logprobs"], strict=True):
        assert top[token] == -0.5 and len(top) == 2


@whole_and_streamed
@pytest.mark.parametrize("stop", ["🎉 ga", "mma", "世", " gamma delta"])
def test_offsets_point_into_a_text_that_was_cut(either_server, stream, stop):
    text = "alpha 世界🎉 gamma delta epsilon"
    said, parts = completion(either_server, stream, prompt=text, logprobs=1, stop=stop)
    assert said == text.partition(stop)[0]
    check_offsets(said, parts["tokens"], parts["text_offset"])


def test_the_parts_of_a_character_stand_where_the_first_does(server, tokenizer):
    said, parts = completion(server, prompt="π √2", logprobs=0)
    by_offset = {}
    for token, offset in zip(parts["tokens"], parts["text_offset"], strict=True):
        by_offset.setdefault(offset, []).append(token)
    # As in vLLM: the first part has no text, the last has that of both.
    assert tokenizer.tokenize("π √2")[1:] == ["ĠâĪ", "ļ", "2"]
    assert said == "π √2" and by_offset == {0: ["π"], 1: ["", " √"], 3: ["2"]}


def sentencepiece(pieces: list[str]) -> Tokenizer:
    """A tokenizer with the decoder of Llama 2's: words begin with ▁, bytes are tokens."""
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", "<s>", *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def test_byte_tokens_and_leading_spaces_of_sentencepiece():
    emoji = [f"<0x{byte:02X}>" for byte in "🎉".encode()]
    tokenizer = sentencepiece(["▁the", "▁end", *emoji, "<0x0A>"])
    texts = TokenTexts(tokenizer)
    assert texts.alone(2) == (" the", b" the") and texts.alone(1) == ("<s>", b"<s>")
    assert texts.alone(8) == ("\n", b"\n") and texts.alone(4)[1] == b"\xf0"
    token_ids = [1, 2, 4, 5, 6, 7, 3, 8]  # with a beginning that is no part of the text
    text = tokenizer.decode(token_ids)
    beginning, *found = texts.read(text, token_ids, [None] + [ENTRY] * 7)
    assert (beginning.text, beginning.offset, beginning.logprob) == ("<s>", 0, None)
    assert b"".join(token.bytes for token in found) == text.encode() == "the🎉 end\n".encode()
    assert [token.offset for token in found] == [0, 3, 3, 3, 3, 4, 8]


def test_bytes_of_all_tokens_of_the_vocabulary(tokenizer):
    """Against the tokenizer itself: whatever it makes of a text of all kinds of characters, bytes
    join to the text."""
    backend = tokenizer.backend_tokenizer
    texts = TokenTexts(backend)
    characters = map(chr, [*range(1, 0xD800, 7), *range(0xE000, 0x2FFFF, 97)])
    # It has no tokens for some bytes and drops them.
    text = "".join(
        c
        for c in characters
        if backend.decode(backend.encode(c, add_special_tokens=False).ids) == c
    )
    assert len(text) > 8000
    token_ids = backend.encode(text, add_special_tokens=False).ids
    assert b"".join(texts.alone(token_id)[1] for token_id in token_ids) == text.encode()
    assert texts.alone(OTHER_TOKEN_ID)[0] == tokenizer.decode([OTHER_TOKEN_ID])
