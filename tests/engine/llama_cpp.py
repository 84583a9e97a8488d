"""llama.cpp's logits of a text, through the C functions in xllamacpp's library.

Its two structs of parameters are passed by value and grow from release to release; here they are bytes, more than they
have, of which a few whose places are found in the defaults are changed.
"""

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_PARAMETERS = ctypes.c_uint32 * 256
_F16, _F32 = 1, 0


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class _Parameters(ctypes.Structure):
    _fields_ = [("words", _PARAMETERS)]


def is_installed() -> bool:
    return find_spec("xllamacpp") is not None


class LlamaCpp:
    """Loads models one after another; its log is dropped."""

    def __init__(self) -> None:
        spec = find_spec("xllamacpp")
        assert spec is not None and spec.origin is not None
        self._library = library = ctypes.CDLL(str(Path(spec.origin).parent / "xllamacpp.abi3.so"))
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(library, name).restype = _Parameters
        library.llama_model_load_from_file.restype = ctypes.c_void_p
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Parameters]
        library.llama_init_from_model.restype = ctypes.c_void_p
        library.llama_init_from_model.argtypes = [ctypes.c_void_p, _Parameters]
        library.llama_decode.argtypes = [ctypes.c_void_p, _Batch]
        library.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        for name in ("llama_get_logits", "llama_free", "llama_model_free"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        log_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.lines: list[str] = []
        self._log = log_type(lambda level, text, data: self.lines.append((text or b"").decode(errors="replace")))
        library.llama_log_set(self._log, None)
        library.llama_backend_init()

    def logits(self, path: Path, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | None:
        """fp32 [n, vocab_size] of a text of up to 500 tokens; None where llama.cpp does not load the file."""
        self.lines.clear()
        model = self._library.llama_model_load_from_file(str(path).encode(), self._library.llama_model_default_params())
        if not model:
            return None
        try:
            context = self._library.llama_init_from_model(model, self._context_parameters())
            if not context:
                return None
            try:
                return self._decode(context, token_ids, vocab_size)
            finally:
                self._library.llama_free(context)
        finally:
            self._library.llama_model_free(model)

    def _context_parameters(self) -> _Parameters:
        """The defaults, with keys and values cached in fp32."""
        parameters = self._library.llama_context_default_params()
        words = parameters.words
        # type_k, type_v: after two pointers, the first pair of ones that stands between words of zero.
        places = [i for i in range(16, 60) if words[i] == words[i + 1] == _F16 and words[i - 1] == words[i - 2] == 0]
        words[places[0]] = words[places[0] + 1] = _F32
        words[13] = 0
        return parameters

    def _decode(self, context: int, token_ids: np.ndarray, vocab_size: int) -> np.ndarray:
        count = len(token_ids)
        sequence = (ctypes.c_int32 * 1)(0)
        batch = _Batch(
            count,
            (ctypes.c_int32 * count)(*map(int, token_ids)),
            None,
            (ctypes.c_int32 * count)(*range(count)),
            (ctypes.c_int32 * count)(*[1] * count),
            (ctypes.POINTER(ctypes.c_int32) * count)(*[sequence] * count),
            (ctypes.c_int8 * count)(*[1] * count),
        )
        status = self._library.llama_decode(context, batch)
        assert status == 0, f"llama_decode fails with {status}: {''.join(self.lines[-3:])}"
        found = np.ctypeslib.as_array(self._library.llama_get_logits(context), (count, vocab_size))
        return found.copy()
