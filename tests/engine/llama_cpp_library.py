"""llama.cpp's C functions in xllamacpp's library.

Its two structs of parameters are passed by value and grow from release to release; here they are
words, more than they have, of which a few whose places are known or found are changed.
"""

import ctypes
from importlib.util import find_spec
from pathlib import Path

_VOCAB_ONLY = 18  # the word whose lowest bit says so: after nine pointers or pairs of numbers
_POINTER, _INTEGER, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p


class Parameters(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", _INTEGER),
        ("token", ctypes.POINTER(_INTEGER)),
        ("embd", _POINTER),
        ("pos", ctypes.POINTER(_INTEGER)),
        ("n_seq_id", ctypes.POINTER(_INTEGER)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_INTEGER))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_FUNCTIONS: dict[str, tuple] = {  # what each returns and takes
    "llama_model_default_params": (Parameters,),
    "llama_context_default_params": (Parameters,),
    "llama_model_load_from_file": (_POINTER, _TEXT, Parameters),
    "llama_init_from_model": (_POINTER, _POINTER, Parameters),
    "llama_decode": (_INTEGER, _POINTER, Batch),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), _POINTER),
    "llama_free": (None, _POINTER),
    "llama_model_free": (None, _POINTER),
    "llama_model_get_vocab": (_POINTER, _POINTER),
    "llama_vocab_n_tokens": (_INTEGER, _POINTER),
    "llama_vocab_is_eog": (ctypes.c_bool, _POINTER, _INTEGER),
    "llama_tokenize": (
        *(_INTEGER, _POINTER, _TEXT, _INTEGER, ctypes.POINTER(_INTEGER), _INTEGER),
        *(ctypes.c_bool, ctypes.c_bool),
    ),
}


class Library:
    """Loads models. lines: of the log, since the last of them."""

    def __init__(self) -> None:
        spec = find_spec("xllamacpp")
        assert spec is not None and spec.origin is not None
        self.call = ctypes.CDLL(str(Path(spec.origin).parent / "xllamacpp.abi3.so"))
        for name, (result, *arguments) in _FUNCTIONS.items():
            getattr(self.call, name).restype = result
            getattr(self.call, name).argtypes = arguments
        self.lines: list[str] = []
        log_type = ctypes.CFUNCTYPE(None, ctypes.c_int, _TEXT, _POINTER)
        self._log = log_type(
            lambda level, text, data: self.lines.append((text or b"").decode(errors="replace"))
        )
        self.call.llama_log_set(self._log, None)
        self.call.llama_backend_init()

    def load(self, path: Path, vocab_only: bool = False) -> int | None:
        """The model, to be freed, or None where llama.cpp refuses the file."""
        self.lines.clear()
        parameters = self.call.llama_model_default_params()
        parameters.words[_VOCAB_ONLY] |= vocab_only
        return self.call.llama_model_load_from_file(str(path).encode(), parameters)
