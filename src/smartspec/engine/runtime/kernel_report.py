"""Which kernels a loaded model runs on, and why, in words for the log of a start and for `/v1/speculation`."""

from smartspec.engine.kernels.cpu import elementwise, native, quantized_linear, ragged_attention
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.quantized import block_types


def kernel_report(loaded: LoadedModel) -> dict[str, str]:
    """Of attention, elementwise and linear: "compiled with gcc 12.2.0 for AVX-512", or "torch's, because ...", each."""
    device, dtype, head_dim = loaded.device, loaded.dtype, loaded.head_dim
    attention = ragged_attention.why_not(device, dtype, loaded.num_heads // loaded.num_kv_heads, head_dim)
    between = native.why_not(elementwise.LIBRARY, device, dtype)
    if between is None and not any(getattr(module, "has_kernel", False) for module in loaded.model.modules()):
        between = "no layer of this model has a form for ours"
    types = ", ".join(sorted(kind.name for kind in block_types(loaded.model)))
    linear = native.why_not(quantized_linear.LIBRARY, device, dtype)
    if linear is None and not types:
        linear = "no weight of this model is in blocks"
    return {
        "attention": _in_words(ragged_attention.LIBRARY, attention),
        "elementwise": _in_words(elementwise.LIBRARY, between),
        "linear": _in_words(quantized_linear.LIBRARY, linear) + (f", on {types}" if types else ""),
    }


def _in_words(name: str, why_not: str | None) -> str:
    return f"torch's, because {why_not}" if why_not else f"compiled with {native.load_kernels(name).about}"
