"""Our metrics once more under vLLM's names, so that its dashboards and autoscalers work here.

They are made of ours when /metrics is read, at no cost to a step. vLLM's labels `model_name` and
`engine` are on all of them: its dashboards select by both.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

VLLM_NAMES = {
    "requests_running": ("num_requests_running",),
    "requests_waiting": ("num_requests_waiting",),
    "kv_use_ratio": ("kv_cache_usage_perc",),
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "cached_prompt_tokens": ("prompt_tokens_cached", "prefix_cache_hits"),
    "generation_tokens": ("generation_tokens",),
    "request_ttft_seconds": ("time_to_first_token_seconds",),
    # One gap a step, however many tokens it brought: as vLLM counts with drafts. Until 0.12 it had
    # the second name too.
    "inter_token_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "request_tpot_seconds": ("request_time_per_output_token_seconds",),
    "request_queue_seconds": ("request_queue_time_seconds",),
    "request_prefill_seconds": ("request_prefill_time_seconds",),
    "request_decode_seconds": ("request_decode_time_seconds",),
    "request_e2e_seconds": ("e2e_request_latency_seconds",),
    "request_prompt_tokens": ("request_prompt_tokens",),
    "request_generation_tokens": ("request_generation_tokens",),
    "prompt_max_generation_tokens": ("request_max_num_generation_tokens",),
    "verified_tokens": ("spec_decode_num_draft_tokens",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens",),
    "accepted_tokens_per_pos": ("spec_decode_num_accepted_tokens_per_pos",),
    "drafts": ("spec_decode_num_drafts",),
    "requests": ("request_success",),
}
FINISH_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "error": "error"}


class VllmMetrics:
    """A registry for generate_latest. ours: the registry of the metrics that are renamed."""

    def __init__(self, ours: CollectorRegistry, model_name: str):
        self._ours = ours
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """The renamed metrics."""
        for metric in self._ours.collect():
            for name in VLLM_NAMES.get(metric.name.removeprefix("smartspec_"), ()):
                renamed = Metric(f"vllm:{name}", metric.documentation, metric.type)
                renamed.samples = [
                    s for sample in metric.samples for s in self._renamed(sample, metric.name, name)
                ]
                yield renamed

    def _renamed(self, sample: Sample, ours: str, name: str) -> list[Sample]:
        labels = dict(sample.labels)
        if name == "request_success":
            reason = FINISH_REASONS.get(labels.pop("outcome"))
            if reason is None:
                return []
            labels["finished_reason"] = reason
        return [
            sample._replace(
                name=f"vllm:{name}{sample.name.removeprefix(ours)}", labels=labels | self._labels
            )
        ]
