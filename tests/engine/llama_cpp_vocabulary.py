"""llama.cpp's own reading of a GGUF file's vocabulary. Only that is read, so that files need no
tensors."""

import ctypes
from pathlib import Path

from llama_cpp_library import Library


class LlamaCppVocabulary:
    """Raises ValueError with llama.cpp's reason where it refuses the file. A context manager: it
    frees its model."""

    def __init__(self, path: Path) -> None:
        self._library = Library()
        self._call, self._model = self._library.call, self._library.load(path, vocab_only=True)
        if not self._model:
            raise ValueError("".join(line for line in self._library.lines if "error" in line))
        self._vocabulary = self._call.llama_model_get_vocab(self._model)

    def __enter__(self) -> "LlamaCppVocabulary":
        return self

    def __exit__(self, *error: object) -> None:
        self._call.llama_model_free(self._model)

    def tokenize(self, text: str, add_special: bool = False) -> list[int]:
        """Special tokens written in the text are special, as in a server's prompts."""
        encoded = text.encode()
        room = len(encoded) + 8
        ids = (ctypes.c_int32 * room)()
        count = self._call.llama_tokenize(
            self._vocabulary, encoded, len(encoded), ids, room, add_special, True
        )
        assert count >= 0
        return ids[:count]

    def ends(self) -> set[int]:
        """Ids that end a generation."""
        count = self._call.llama_vocab_n_tokens(self._vocabulary)
        return {i for i in range(count) if self._call.llama_vocab_is_eog(self._vocabulary, i)}
