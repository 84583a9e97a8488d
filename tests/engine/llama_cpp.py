"""llama.cpp's logits of a text."""

import ctypes
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from llama_cpp_library import Batch, Library, Parameters

_F16, _F32 = 1, 0


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
    _library = Library()


def _logits(path: Path, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | str:
    found, call = None, _library.call
    if model := _library.load(path):
        if context := call.llama_init_from_model(model, _context_parameters()):
            found = _decoded(context, token_ids, vocab_size)
            call.llama_free(context)
        call.llama_model_free(model)
    return " ".join("".join(_library.lines[-3:]).split()) if found is None else found


def _context_parameters() -> Parameters:
    """The defaults, without flash attention and with keys and values cached in fp32."""
    parameters = _library.call.llama_context_default_params()
    words = parameters.words
    # Types of rope scaling, pooling, attention and flash attention are -1 each, for "as the model
    # says".
    types = next(i for i in range(40) if all(word == 0xFFFFFFFF for word in words[i : i + 4]))
    words[types + 3] = 0
    # The types of keys and of values stand after two empty pointers.
    cache = next(i for i in range(types, 60) if words[i - 4 : i + 2] == [0, 0, 0, 0, _F16, _F16])
    words[cache] = words[cache + 1] = _F32
    return parameters


def _decoded(context: int, token_ids: np.ndarray, vocab_size: int) -> np.ndarray | None:
    count = len(token_ids)
    sequence = (ctypes.c_int32 * 1)(0)
    batch = Batch(
        count,
        (ctypes.c_int32 * count)(*map(int, token_ids)),
        None,
        (ctypes.c_int32 * count)(*range(count)),
        (ctypes.c_int32 * count)(*[1] * count),
        (ctypes.POINTER(ctypes.c_int32) * count)(*[sequence] * count),
        (ctypes.c_int8 * count)(*[1] * count),
    )
    if _library.call.llama_decode(context, batch):
        return None
    logits = _library.call.llama_get_logits(context)
    return np.ctypeslib.as_array(logits, (count, vocab_size)).copy()
