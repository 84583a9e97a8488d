"""Traces of generations: attributes of the span that FastAPI opens for a request, see
docs/monitoring.md.

The names are those of OpenTelemetry's semantic conventions for generative AI.
"""

from collections.abc import Collection

from opentelemetry import trace

from smartspec.engine.text.stream import TextDelta


def describe_generation(
    model_name: str, ttft: float | None, last: Collection[TextDelta], n: int
) -> None:
    """ttft: seconds to the first token of all, None if there was none. last: the last delta of each
    choice that has one. n: choices of a prompt."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    attributes = {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "smartspec",
        "gen_ai.request.model": model_name,
        "gen_ai.usage.input_tokens": sum(
            delta.num_prompt_tokens for delta in last if delta.index % n == 0
        ),
        "gen_ai.usage.output_tokens": sum(delta.num_output_tokens for delta in last),
        "gen_ai.response.finish_reasons": [delta.finish_reason or "aborted" for delta in last],
    }
    if ttft is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = ttft
    span.set_attributes(attributes)
