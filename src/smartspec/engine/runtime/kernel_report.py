"""The kernels that a loaded model runs on, and why, in words for the log of a start and for
`/v1/speculation`."""

from smartspec.engine.kernels.cpu import (
    decoder_layer,
    elementwise,
    native,
    quantized_linear,
    ragged_attention,
)
from smartspec.engine.models.decoder_layer import FusedDecoderLayer
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.panel_linear import PanelLinear
from smartspec.engine.models.quantized import block_types

BFLOAT16, FP32 = ", inputs rounded to bfloat16", ", inputs in fp32"
NO_FORM = "no layer of this model has a form for ours"


def kernel_report(loaded: LoadedModel) -> dict[str, str]:
    """The kernel of each kind of operation, attention, elementwise, linear and layer (whole ones):
    "compiled with gcc 12.2.0 for AVX-512", or "torch's, because ..."."""
    head_dim, group_size = loaded.head_dim, loaded.num_heads // loaded.num_kv_heads
    modules = list(loaded.model.modules())
    types = ", ".join(sorted(kind.name for kind in block_types(loaded.model)))
    in_panels = any(isinstance(module, PanelLinear) for module in modules)

    def where(library: str, has_form: bool) -> str:
        reason = native.why_not(library, loaded.device, loaded.dtype)
        return _in_words(library, reason or (None if has_form else NO_FORM))

    linear = where(quantized_linear.LIBRARY, bool(types) or in_panels)
    attention = ragged_attention.why_not(loaded.device, loaded.dtype, group_size, head_dim)
    return {
        "attention": _in_words(ragged_attention.LIBRARY, attention),
        "elementwise": where(
            elementwise.LIBRARY, any(getattr(module, "has_kernel", False) for module in modules)
        ),
        "linear": linear + (f", on {types}" if types else "") + _inputs(loaded, types),
        "layer": where(
            decoder_layer.LIBRARY, any(isinstance(module, FusedDecoderLayer) for module in modules)
        ),
    }


def _inputs(loaded: LoadedModel, types: str) -> str:
    """The inputs of linears, where the dtype of their weights does not say them."""
    if loaded.activations == "int8":
        return (
            ", inputs rounded to 8 bits "
            f"({quantized_linear.int8_instructions() or 'slow: no instruction for them'})"
        )
    if loaded.activations == "bfloat16":
        return BFLOAT16
    return FP32 if types else ""


def _in_words(name: str, why_not: str | None) -> str:
    return (
        f"torch's, because {why_not}"
        if why_not
        else f"compiled with {native.load_kernels(name).about}"
    )
