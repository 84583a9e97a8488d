"""The keys of a GGUF file: every key is applied, or changes nothing, or the file is refused by its
name.

Why: transformers reads a few keys and drops the others without a word, so that a model is served
that is not the file's. Here the code that applies a key takes it; a key that no code took is
refused. Unknown keys are refused, too.

Names and meanings: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp, which
defines the rest.
"""

import math
from typing import Never

from smartspec.engine.models.gguf_file import GGUFFile
from smartspec.engine.models.unsupported import UnsupportedModelError

# Keys under the architecture's name that change no number, whatever they say. Tensors tell the
# parallel residual.
HARMLESS = {"rope.scaling.finetuned", "use_parallel_residual", "pooling_type"}
# Keys that change nothing with these values.
NEUTRAL: dict[str, tuple] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_beta_fast": (32,),
    "rope.scaling.yarn_beta_slow": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
# Keys that have a number for every layer in some files.
LISTS = {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}
# Keys outside the architecture's name: what a file is, and how the numbers of its blocks are to be
# read.
GENERAL: dict[str, tuple] = {"general.type": ("model",), "general.quantization_version": (2,)}
_REMEDY = "use another file of this model, or its Hugging Face checkpoint"


class Keys:
    """The keys of a file under its architecture's name. What is taken counts as applied."""

    def __init__(self, file: GGUFFile):
        self.file = file
        self.architecture = str(file.scalars.get("general.architecture"))
        prefix = f"{self.architecture}."
        self._left = {
            key.removeprefix(prefix): value
            for key, value in file.scalars.items()
            if key.startswith(prefix)
        }
        self._layer_tensors = {
            name.split(".", 2)[2] for name in file.tensors if name.startswith("blk.")
        }
        self.tensors: set[str] = set()  # those that were taken

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above 0. As below, and where it is 0."""
        value = self.count(name, default)
        if value < 1:
            self.refuse(name, value, "it is no size")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number; a list for all layers counts as one number where all are the same.

        Raises UnsupportedModelError where it is none, and where it is missing and has no default.
        """
        value = self._take(name, default)
        if type(value) is not int or value < 0:
            self.refuse(name, value, "it is no whole number")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """The value of a key, as of count, but any number from 0."""
        value = self._take(name, default)
        if type(value) is not float or not 0.0 <= value < math.inf:
            self.refuse(name, value, "it is no number from 0")
        return value

    def _take(self, name: str, default: object) -> object:
        value = self._left.pop(name, default)
        if value is None:
            self._fail(f"it has no key {self.architecture}.{name}")
        if not isinstance(value, tuple):
            return value
        if name not in LISTS or len(set(value)) != 1:
            self.refuse(name, value, "its layers differ")
        return value[0]

    def text(self, name: str, default: str) -> str:
        return str(self._left.pop(name, default))

    def has(self, *names: str) -> bool:
        """True if any layer has a tensor of one of these names."""
        return not self._layer_tensors.isdisjoint(names)

    def factors(self, name: str) -> list[float] | None:
        """The numbers of a small tensor that stands for a setting; None where the file has none."""
        if name not in self.file.tensors:
            return None
        self.tensors.add(name)
        return self.file.read_plain(name).reshape(-1).tolist()

    def refuse(self, name: str, value: object, reason: str) -> Never:
        self._fail(f"its key {self.architecture}.{name} = {value!r} cannot be applied ({reason})")

    def refuse_tensor(self, name: str, reason: str) -> Never:
        self._fail(f"its tensor {name!r} cannot be applied ({reason})")

    def refuse_rest(self) -> None:
        """Raise UnsupportedModelError where something was not taken that can change a number."""
        for name, value in self._left.items():
            if name not in HARMLESS and (
                isinstance(value, tuple) or value not in NEUTRAL.get(name, ())
            ):
                self.refuse(name, value, f"not known of {self.architecture!r} models here")
        for key, values in GENERAL.items():
            if self.file.scalars.get(key, values[0]) not in values:
                self._fail(f"its key {key} is {self.file.scalars[key]!r}, known is {values[0]!r}")

    def _fail(self, problem: str) -> Never:
        raise UnsupportedModelError(f"{self.file.path.name} is not served: {problem}: {_REMEDY}")
