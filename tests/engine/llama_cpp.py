"""llama.cpp's logits of a text, through the C functions in xllamacpp's library.

Its two structs of parameters are passed by value and grow from release to release; here they are
bytes, more than they have, of which a few whose places are found in the defaults are changed.
"""

import ctypes
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
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
    """llama.cpp in a process of its own, as it ends its process where one of its assertions does
    not hold."""

    def __init__(self) -> None:
        os.environ["GGML_NO_BACKTRACE"] = "1"
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=context, initializer=_load_library)

    def logits(self, path: Path, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | str:
        """fp32 [n, vocab_size] of a text of up to 500 tokens, or why llama.cpp does not compute
        them."""
        try:
            return self._process.submit(_logits, path, token_ids, vocab_size).result()
        except BrokenProcessPool:
            self._start()
            return "it ends its process"

    def close(self) -> None:
        self._process.shutdown()


def _load_library() -> None:
    global _library
    _library = _Library()


def _logits(path: Path, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | str:
    return _library.logits(path, token_ids, vocab_size)


class _Library:
    """Loads models one after another; of its log the last lines count."""

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
        self._log = log_type(
            lambda level, text, data: self.lines.append((text or b"").decode(errors="replace"))
        )
        library.llama_log_set(self._log, None)
        library.llama_backend_init()

    def logits(self, path: Path, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | str:
        self.lines.clear()
        model = self._library.llama_model_load_from_file(
            str(path).encode(), self._library.llama_model_default_params()
        )
        if not model:
            return self._reason()
        try:
            context = self._library.llama_init_from_model(model, self._context_parameters())
            if not context:
                return self._reason()
            try:
                return self._decode(context, token_ids, vocab_size)
            finally:
                self._library.llama_free(context)
        finally:
            self._library.llama_model_free(model)

    def _reason(self) -> str:
        return " ".join("".join(self.lines[-3:]).split())

    def _context_parameters(self) -> _Parameters:
        """The defaults, without flash attention and with keys and values cached in fp32."""
        parameters = self._library.llama_context_default_params()
        words = parameters.words
        # Types of rope scaling, pooling, attention and flash attention are -1 each, for "as the
        # model says".
        types = next(i for i in range(40) if all(word == 0xFFFFFFFF for word in words[i : i + 4]))
        words[types + 3] = 0
        # The types of keys and of values stand after two empty pointers.
        cache = next(
            i for i in range(types, 60) if words[i - 4 : i + 2] == [0, 0, 0, 0, _F16, _F16]
        )
        words[cache] = words[cache + 1] = _F32
        return parameters

    def _decode(self, context: int, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | str:
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
        if status != 0:
            return self._reason()
        found = np.ctypeslib.as_array(self._library.llama_get_logits(context), (count, vocab_size))
        return found.copy()
