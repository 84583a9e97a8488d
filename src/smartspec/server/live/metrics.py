"""Prometheus metrics: what the engine does per step, and what callers experience per request."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from smartspec.core.batch import StepOutput
from smartspec.core.engine_core import EngineCore
from smartspec.core.speculation import SpeculationOptions
from smartspec.engine.runtime.async_engine import EngineError, NoTokenLeft
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.tracing import describe_generation
from smartspec.server.live.ignored_fields import IgnoredFields
from smartspec.server.live.vllm_metrics import VllmMetrics

SHORT_SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.0,
)
LONG_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
OUTCOMES = ("stop", "length", "aborted", "error", "rejected")


class ServerMetrics:
    """All metrics of one server, in a registry of their own. model_name: a label of those with
    vLLM's names."""

    def __init__(self, core: EngineCore, model_name: str = ""):
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._vllm = VllmMetrics(self.registry, model_name)
        self.registry.register(_CoreCounts(core))
        gauge, counter, histogram = (
            partial(kind, namespace="smartspec", registry=self.registry)
            for kind in (Gauge, Counter, Histogram)
        )
        short = partial(histogram, buckets=SHORT_SECONDS)
        long = partial(histogram, buckets=LONG_SECONDS)
        tokens = partial(histogram, buckets=TOKENS)
        gauge("requests_running", "Requests in the batch").set_function(lambda: core.num_running)
        gauge("requests_waiting", "Requests in the queue").set_function(lambda: core.num_waiting)
        text = "KV blocks held by running requests / all"
        gauge("kv_use_ratio", text).set_function(lambda: kv_use_ratio(core))
        self.requests = counter(
            "requests", "Requests by how they ended (each choice counts)", ["outcome"]
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens as usage counts them, cached ones among them"
        )
        self.cached_prompt_tokens = counter(
            "cached_prompt_tokens", "Prompt tokens whose KV was there already"
        )
        self.generation_tokens = counter("generation_tokens", "Output tokens as usage counts them")
        self.draft_tokens = counter("draft_tokens", "Draft tokens made")
        self.verified_tokens = counter("verified_tokens", "Draft tokens verified by the target")
        self.accepted_tokens = counter("accepted_tokens", "Draft tokens accepted")
        self.decode_rows = counter("decode_rows", "Decoding requests, summed over steps")
        self.drafts = counter("drafts", "Drafts verified, summed over steps")
        self.accepted_at = counter(
            "accepted_tokens_per_pos", "Draft tokens accepted, by their position", ["position"]
        )
        self.responses = counter("http_responses", "Answers by HTTP status", ["status"])
        text = "Bodies with a field, tool or item that this server does not know, by its name"
        self.ignored_fields = IgnoredFields(counter("ignored_fields", text, ["field"]))
        self.chosen_length = histogram(
            "chosen_length", "Draft tokens verified, per decoding request and step", buckets=LENGTHS
        )
        self.predicted_step = short("predicted_step_seconds", "Step time the controller predicted")
        self.step = short("step_seconds", "Step time measured")
        self.ttft = long("request_ttft_seconds", "Arrival to first token")
        self.queue = long("request_queue_seconds", "Arrival to the beginning of the first step")
        self.prefill = long("request_prefill_seconds", "Beginning of the first step to first token")
        self.decode = long("request_decode_seconds", "First token to last token")
        self.gap = short("inter_token_seconds", "Between the steps that brought a request tokens")
        self.tpot = short("request_tpot_seconds", "(end to end - TTFT) / (tokens - 1)")
        text = (
            "Requests with a wanted time to first token (ttft) or per output token (tpot), met or "
            "missed"
        )
        self.objectives = counter("objectives", text, ["objective", "outcome"])
        self.e2e = long("request_e2e_seconds", "Arrival to last token")
        self.prompt_length = tokens("request_prompt_tokens", "Tokens of a request's prompt")
        self.output_length = tokens("request_generation_tokens", "Tokens of a request's output")
        text = "Tokens of the longest of the n outputs of a prompt"
        self.longest_output = tokens("prompt_max_generation_tokens", text)

    def observe_step(self, output: StepOutput) -> None:
        """Count a step; a listener of the AsyncEngine."""
        self.draft_tokens.inc(output.num_draft_tokens)
        self.verified_tokens.inc(output.num_verified_tokens)
        self.accepted_tokens.inc(output.num_accepted_tokens)
        self.decode_rows.inc(len(output.verified_lengths))
        self.drafts.inc(sum(length > 0 for length in output.verified_lengths))
        for length in output.verified_lengths:
            self.chosen_length.observe(length)
        accepted = [row.num_accepted for row in output.outputs]
        for position in range(max(accepted, default=0)):
            self.accepted_at.labels(str(position)).inc(sum(count > position for count in accepted))
        if output.predicted_seconds is not None:
            self.predicted_step.observe(output.predicted_seconds)
        self.step.observe(output.seconds.total)

    async def observe_call(
        self,
        deltas: AsyncIterator[TextDelta],
        num_prompts: int,
        n: int,
        wanted: SpeculationOptions,
    ) -> AsyncIterator[TextDelta]:
        """Pass on the deltas of a call (n choices of each prompt). Count their tokens as its usage
        will; note latencies and outcomes."""
        start = time.monotonic()
        first: dict[int, float] = {}
        latest: dict[int, float] = {}
        last: dict[int, TextDelta] = {}
        num_unfinished, outcome = num_prompts * n, "aborted"
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    now = time.monotonic() - start
                    if delta.index not in first:
                        first[delta.index] = now
                        self._begin(delta, now, n)
                    elif delta.token_ids:
                        self.gap.observe(now - latest[delta.index])
                    latest[delta.index], last[delta.index] = now, delta
                    self.generation_tokens.inc(len(delta.token_ids))
                    if delta.finish_reason is not None:
                        num_unfinished -= 1
                        queued = (
                            0.0 if delta.first_step is None else max(0.0, delta.first_step - start)
                        )
                        self._finish(delta, queued, first[delta.index], now, wanted)
                        self._finish_prompt(delta.index // n, last, n)
                    yield delta
        except Exception as error:
            is_ours = isinstance(error, EngineError) and not isinstance(error, NoTokenLeft)
            outcome = "error" if is_ours else "rejected"
            raise
        finally:
            self.requests.labels(outcome).inc(num_unfinished)
            describe_generation(
                self._model_name, min(first.values(), default=None), last.values(), n
            )

    def observe_answer(self, status: int) -> None:
        """Count an answer by its HTTP status."""
        self.responses.labels(str(status)).inc()

    def to_text(self) -> bytes:
        """Prometheus text format: our names, then vLLM's."""
        return generate_latest(self.registry) + generate_latest(self._vllm)

    def _begin(self, delta: TextDelta, ttft: float, n: int) -> None:
        self.ttft.observe(ttft)
        if delta.index % n == 0:  # a prompt counts once, however many choices it has
            self.prompt_tokens.inc(delta.num_prompt_tokens)
            self.cached_prompt_tokens.inc(delta.num_cached_tokens)

    def _finish_prompt(self, number: int, last: dict[int, TextDelta], n: int) -> None:
        """Counts a prompt. Called when all its choices have ended."""
        choices = [last.get(index) for index in range(number * n, (number + 1) * n)]
        if all(choice is not None and choice.finish_reason is not None for choice in choices):
            self.longest_output.observe(max(choice.num_output_tokens for choice in choices))

    def _finish(
        self, delta: TextDelta, queued: float, ttft: float, e2e: float, wanted: SpeculationOptions
    ) -> None:
        self.requests.labels(delta.finish_reason).inc()
        self.queue.observe(queued)
        self.prefill.observe(max(0.0, ttft - queued))
        self.decode.observe(e2e - ttft)
        self.e2e.observe(e2e)
        self.prompt_length.observe(delta.num_prompt_tokens)
        self.output_length.observe(delta.num_output_tokens)
        self._judge("ttft", ttft, wanted.ttft_target_seconds)
        if delta.num_output_tokens > 1:
            tpot = (e2e - ttft) / (delta.num_output_tokens - 1)
            self.tpot.observe(tpot)
            self._judge("tpot", tpot, wanted.tpot_target_seconds)

    def _judge(self, objective: str, seconds: float, target: float | None) -> None:
        if target is not None:
            self.objectives.labels(objective, "met" if seconds <= target else "missed").inc()


class _CoreCounts:
    """What the scheduler and the controller count themselves, read with /metrics."""

    def __init__(self, core: EngineCore):
        self._core = core

    def collect(self) -> Iterator[Metric]:
        # Only a core.safe_controller.SafeController counts failures; any other ends the step.
        controller = self._core.controller
        text = "Requests that gave back their memory to be computed anew"
        count = self._core.scheduler.num_preemptions
        yield CounterMetricFamily("smartspec_preemptions", text, count)
        text = "Failures of the controller (served without drafts)"
        count = getattr(controller, "num_errors", 0)
        yield CounterMetricFamily("smartspec_controller_errors", text, count)
        text = (
            "Views and outcome that could not be true, by what was wrong (not decided on, not "
            "learned from)"
        )
        ignored = CounterMetricFamily("smartspec_ignored_input", text, labels=["kind"])
        for kind, count in dict(getattr(controller, "num_ignored", {})).items():
            ignored.add_metric([kind], count)
        yield ignored


def kv_use_ratio(core: EngineCore) -> float:
    """Share of the KV blocks that running requests hold."""
    blocks = core.scheduler.blocks
    return blocks.num_used_blocks / blocks.num_blocks
