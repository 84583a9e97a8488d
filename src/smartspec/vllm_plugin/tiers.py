"""Draft lengths for which vLLM has captured full graphs of decoding: tiers, in which all requests draft alike."""

from smartspec.vllm_plugin.compatibility import is_adaptive

RAGGED = ("ngram", "suffix", "custom_class")  # a draft is as long as what is found
ON_THE_GPU = ("ngram",)  # but not with the V2 runner, which drafts the same number of tokens for all requests
AUTOMATIC = "goodput"  # the policy that gives way to tiers


def captured_lengths(vllm_config) -> tuple[int, ...] | None:
    """Lengths whose steps keep the full graph if all requests share one. None where lengths may differ without loss:
    there are no such graphs, or drafts have different lengths in any case.

    The V1 runner has graphs of the configured length alone, and none beside a batch-size table. The V2 runner captures
    them for all lengths in the table, and with adaptive verification for any mix (vLLM 0.33:
    v1/worker/gpu/cudagraph_utils.py, config/vllm.py).
    """
    speculation = vllm_config.speculative_config
    mode = vllm_config.compilation_config.cudagraph_mode
    if mode is None or not mode.has_full_cudagraphs() or is_adaptive(vllm_config):
        return None
    is_v2 = getattr(vllm_config, "use_v2_model_runner", False)
    if speculation.method in RAGGED and not (is_v2 and speculation.method in ON_THE_GPU):
        return None
    table = getattr(speculation, "num_speculative_tokens_per_batch_size", None)
    if not table:
        return (speculation.num_speculative_tokens,)
    longest = speculation.num_speculative_tokens
    return tuple(sorted({min(length, longest) for *_, length in table if length})) or None


def policy_name(policy: str, lengths: tuple[int, ...] | None) -> str:
    """The policy of the settings, or its form for tiers."""
    if policy != AUTOMATIC or lengths is None:
        return policy
    return f"uniform:{','.join(map(str, lengths))}"
