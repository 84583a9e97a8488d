"""Rotary positions of a GGUF file, as transformers' rope_parameters.

The file tells them as llama.cpp's ggml_rope_ext takes them: a base, a scale of frequencies
(linear), its mixture over dimensions (YaRN), a factor for every frequency as a tensor (Llama 3,
LongRoPE), and a factor on cosine and sine.
"""

import math

from smartspec.engine.models.gguf_keys import Keys

DEFAULT_BASE = 10_000.0
FREQUENCIES = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def rope_parameters(keys: Keys, head_dim: int, context: int, of_phi3: bool) -> dict:
    """transformers' rope_parameters of heads of head_dim numbers in texts of up to context tokens.

    of_phi3: the model can rotate the first numbers of a head alone, and of types its configuration
    takes longrope alone, not linear and yarn. Raises UnsupportedModelError naming the key that
    cannot be applied.
    """
    width = keys.size("rope.dimension_count", head_dim)
    if width % 2 or not (width == head_dim or (of_phi3 and width < head_dim)):
        how = "in pairs, at most all" if of_phi3 else "as a whole"
        keys.refuse("rope.dimension_count", width, f"heads of {head_dim} numbers are rotated {how}")
    rotated = {"rope_theta": rope_base(keys, "rope.freq_base")}
    if of_phi3:
        rotated["partial_rotary_factor"] = width / head_dim
    return rotated | _scaling(keys, width // 2, context, of_phi3)


def rope_base(keys: Keys, name: str) -> float:
    base = keys.real(name, DEFAULT_BASE)
    return base if base else keys.refuse(name, base, "frequencies are powers of it")


def _scaling(keys: Keys, num_frequencies: int, context: int, of_phi3: bool) -> dict:
    kind = keys.text("rope.scaling.type", "linear")
    old = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", old) or 1.0
    attention = keys.real("rope.scaling.attn_factor", 1.0)
    original = keys.size("rope.scaling.original_context_length", context)
    short, long = _factors(keys, num_frequencies)
    if kind == "yarn":
        if short or of_phi3:
            keys.refuse(
                "rope.scaling.type",
                kind,
                "not together with factors of its own for every frequency",
            )
        return _yarn(keys, factor, attention, original)
    if kind not in ("none", "linear", "longrope"):
        keys.refuse("rope.scaling.type", kind, "known are none, linear, yarn and longrope")
    factor = 1.0 if kind == "none" else factor
    if not short and attention == 1.0 and not (of_phi3 and factor != 1.0):
        return (
            {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
        )
    return {
        "rope_type": "longrope",
        "short_factor": [factor * number for number in short or [1.0] * num_frequencies],
        "long_factor": [factor * number for number in long or [1.0] * num_frequencies],
        "attention_factor": attention,
        "original_max_position_embeddings": original,
        "factor": 1.0,  # of it transformers would derive the attention factor, which is given
    }


def _factors(keys: Keys, num_frequencies: int) -> tuple[list[float] | None, list[float] | None]:
    """The divisors of frequencies in short and in long texts."""
    same, short, long = (keys.factors(name) for name in (FREQUENCIES, SHORT, LONG))
    if (short is None) != (long is None) or (same and short):
        keys.refuse_tensor(
            FREQUENCIES if same else SHORT if short else LONG,
            f"{SHORT} and {LONG} go together, alone",
        )
    for name, found in ((FREQUENCIES, same), (SHORT, short), (LONG, long)):
        if found and len(found) != num_frequencies:
            keys.refuse_tensor(
                name, f"it has {len(found)} numbers for {num_frequencies} frequencies"
            )
    return same or short, same or long


def _yarn(keys: Keys, factor: float, attention: float, original: int) -> dict:
    """YaRN (arXiv:2309.00071, section 3.4): cosine and sine grow by 0.1 ln(factor) + 1."""
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": attention * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0),
    }
