"""Sampling options that a checkpoint was made for, where a request leaves them out, as in vLLM and
SGLang.

They are those of generation_config.json, or of a GGUF file's general.sampling.*, which llama.cpp
reads.
"""

from collections.abc import Mapping

from transformers import GenerationConfig

from smartspec.core.sampling_params import SamplingParams

# Our name of each: of transformers' generation configuration, and of GGUF's keys.
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
}
GGUF_NAMES = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def keep_gguf_defaults(config: GenerationConfig, scalars: Mapping[str, object]) -> None:
    """Writes what a GGUF file says into a generation configuration. scalars: the file's
    metadata."""
    for name, key in GGUF_NAMES.items():
        if (value := scalars.get(f"general.sampling.{key}")) is not None:
            setattr(config, NAMES[name], value)


def sampling_defaults(config: GenerationConfig | None) -> dict[str, float]:
    """Options of SamplingParams that a generation configuration has, as they stand there."""
    found = {name: getattr(config, theirs, None) for name, theirs in NAMES.items()}
    return {name: value for name, value in found.items() if value is not None}


def check_defaults(defaults: Mapping[str, float], model: str) -> None:
    """Raises ValueError for a value that is none."""
    try:
        for name, value in defaults.items():
            if not isinstance(value, int if name in ("top_k", "max_tokens") else (int, float)):
                raise ValueError(f"{name} is {value!r}")
        SamplingParams(**defaults)  # type: ignore[arg-type]
    except ValueError as error:
        remedy = "mend its generation_config.json, or start with --generation-config none"
        raise ValueError(f"the generation config of {model!r}: {error}: {remedy}") from error
