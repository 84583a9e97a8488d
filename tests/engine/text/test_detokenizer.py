"""Text from tokens that arrive one by one, and stop strings in text that arrives in pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from smartspec.engine.text.detokenizer import IncrementalDetokenizer, StopStrings


def byte_level_tokenizer() -> Tokenizer:
    """Every token is one byte, but for one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def sentence_piece_tokenizer() -> Tokenizer:
    """Like Llama 2: word starts marked, bytes as tokens, the very first space stripped."""
    words = ["<unk>", "▁Hello", "▁world", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


BYTES = byte_level_tokenizer()
PIECES = sentence_piece_tokenizer()


def pieces_of(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [detokenizer.push(token_id) for token_id in token_ids]


@given(st.text())
def test_any_text_comes_through_character_by_character(text):
    pieces = pieces_of(BYTES, BYTES.encode(text).ids, [])
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)
        assert [piece for piece in pieces if piece] == list(text)


def test_special_tokens_have_no_text():
    end = BYTES.token_to_id("<end>")
    token_ids = [end, *BYTES.encode("é").ids, end, *BYTES.encode("b").ids]
    assert pieces_of(BYTES, token_ids, []) == ["", "", "é", "", "b"]


def test_an_unfinished_character_has_no_text():
    assert pieces_of(BYTES, BYTES.encode("a🎉").ids[:-1], []) == ["a", "", "", ""]


def test_a_space_is_kept_after_a_prompt():
    ids = [PIECES.token_to_id(word) for word in ("▁Hello", "▁world")]
    assert pieces_of(PIECES, ids, []) == ["Hello", " world"]
    assert pieces_of(PIECES, ids, ids) == [" Hello", " world"]


@given(st.lists(st.integers(0, 259), max_size=12), st.lists(st.integers(0, 259), max_size=12))
def test_no_tokens_make_it_fail_and_good_ones_have_text_after_any(prompt, token_ids):
    """Bytes that are no character may hold back the letters right after them, but not for
    longer."""
    letters = ["a"] * 4
    for tokenizer in (PIECES, BYTES):
        known = tokenizer.get_vocab_size()
        tokens = [token_id % known for token_id in token_ids] + [
            tokenizer.token_to_id(letter) for letter in letters
        ]
        pieces = pieces_of(tokenizer, tokens, [token_id % known for token_id in prompt])
        assert "".join(pieces).endswith("a") and pieces[-1] == "a"


def test_a_prompt_that_ends_within_a_character_is_not_repeated():
    emoji = [PIECES.token_to_id(f"<0x{byte:02X}>") for byte in "🎉".encode()]
    prompt = [PIECES.token_to_id("▁Hello"), *emoji[:3]]
    assert "Hello" not in "".join(
        pieces_of(PIECES, [emoji[3], PIECES.token_to_id("▁world")], prompt)
    )


def cut(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    """What is shown after each piece, the rest at the end, and whether a stop string was met."""
    strings, shown = StopStrings(stop), []
    for piece in pieces:
        text, stopped = strings.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, strings.flush()], False


def naively_cut(stop: list[str], text: str) -> tuple[str, bool]:
    """Of several that are complete at the same character the longest counts."""
    for end in range(1, len(text) + 1):
        if complete := [len(each) for each in stop if text[:end].endswith(each)]:
            return text[: end - max(complete)], True
    return text, False


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "stopped"),
    [
        ((), ["a", "b"], ["a", "b", ""], False),
        (("END",), ["abE", "N", "Dc"], ["ab", "", ""], True),
        (("END",), ["abE", "N", "C", "d"], ["ab", "", "ENC", "d", ""], False),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (("\n\n", "###"), ["one\n", "two#", "\n\n", "##"], ["one", "\ntwo", "#"], True),
        (("🎉",), ["party 🎉 over"], ["party "], True),
    ],
)
def test_stop_strings(stop, pieces, shown, stopped):
    assert cut(stop, pieces) == (shown, stopped)


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_text_ends_before_the_stop_string_that_is_complete_first_whatever_the_pieces(
    text, stop, cuts
):
    bounds = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    shown, stopped = cut(tuple(stop), pieces)
    assert ("".join(shown), stopped) == naively_cut(stop, text)
