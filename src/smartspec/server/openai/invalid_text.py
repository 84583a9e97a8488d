"""A server whose text is invalid (engine.sampling.forced_acceptance): how its answers say so, and
what it refuses."""

from smartspec.server.http.errors import APIError
from smartspec.server.openai.generation_body import GenerationBody

# Fields of a body that promise something of the text, beside those of structured output.
EXACT = {
    "seed",
    "logprobs",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "logit_bias",
    "tools",
    "prediction",
}


def invalid_text_name(model: str, acceptance: float) -> str:
    """The name under which the model is served. It stands in every answer, and no client names it
    by accident."""
    return f"{model}:invalid-text:forced-acceptance-{acceptance:g}"


def check_promises_nothing(body: GenerationBody) -> None:
    """Raises APIError 400 naming the field of a request that wants something of its text."""
    wanted = body.model_dump(include=EXACT, exclude_defaults=True)
    for name in (*body.grammars(), *wanted):
        raise APIError(
            400,
            f"this server runs with --forced-acceptance, so its text is invalid and {name} could "
            "not be kept: leave it out, or start the server without that option",
            name,
            "invalid_value",
        )
