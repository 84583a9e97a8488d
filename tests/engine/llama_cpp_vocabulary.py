"""llama.cpp's own reading of a GGUF file's vocabulary, through the C functions in xllamacpp's
library.

Only the vocabulary is read, so that files need no tensors. llama_model_params is passed by value
and grows from release to release; here it is bytes, more than it has, of which one is changed.
"""

import ctypes
from importlib.util import find_spec
from pathlib import Path

_VOCAB_ONLY = 72  # where the flag stands: after nine pointers or pairs of numbers


class _Parameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]


def _library() -> ctypes.CDLL:
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.origin is not None
    library = ctypes.CDLL(str(Path(spec.origin).parent / "xllamacpp.abi3.so"))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.llama_model_default_params.restype = _Parameters
    library.llama_model_load_from_file.restype = pointer
    library.llama_model_load_from_file.argtypes = [text, _Parameters]
    library.llama_model_get_vocab.restype = pointer
    for name in ("llama_model_get_vocab", "llama_model_free", "llama_vocab_n_tokens"):
        getattr(library, name).argtypes = [pointer]
    library.llama_vocab_is_eog.argtypes = [pointer, ctypes.c_int32]
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    ids = ctypes.POINTER(ctypes.c_int32)
    library.llama_tokenize.argtypes = [
        pointer,
        text,
        ctypes.c_int32,
        ids,
        ctypes.c_int32,
        ctypes.c_bool,
        ctypes.c_bool,
    ]
    return library


class LlamaCppVocabulary:
    """Raises ValueError with llama.cpp's reason where it refuses the file. A context manager: it
    frees its model."""

    def __init__(self, path: Path) -> None:
        self._library = library = _library()
        lines: list[str] = []
        log_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._log = log_type(
            lambda level, line, data: lines.append((line or b"").decode(errors="replace"))
        )
        library.llama_log_set(self._log, None)
        library.llama_backend_init()
        parameters = library.llama_model_default_params()
        parameters.bytes[_VOCAB_ONLY] = 1
        self._model = library.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError("".join(line for line in lines if "error" in line))
        self._vocabulary = library.llama_model_get_vocab(self._model)

    def __enter__(self) -> "LlamaCppVocabulary":
        return self

    def __exit__(self, *error: object) -> None:
        self._library.llama_model_free(self._model)

    def tokenize(self, text: str, add_special: bool = False) -> list[int]:
        """Special tokens written in the text are special, as in a server's prompts."""
        encoded = text.encode()
        room = len(encoded) + 8
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocabulary, encoded, len(encoded), ids, room, add_special, True
        )
        assert count >= 0
        return ids[:count]

    def ends(self) -> set[int]:
        """Ids that end a generation."""
        count = self._library.llama_vocab_n_tokens(self._vocabulary)
        return {i for i in range(count) if self._library.llama_vocab_is_eog(self._vocabulary, i)}
