"""A tokenizer of bytes, made here."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(*splits: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """Bytes and a few pairs of them, in texts that are split first: what `tokenizer.ggml.pre` of a
    GGUF file says."""
    vocabulary = {
        char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    vocabulary |= {"12": 256, "123": 257, "ĊĊ": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("1", "2"), ("12", "3"), ("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


DIGITS = pre_tokenizers.Digits(individual_digits=True)
