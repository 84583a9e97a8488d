"""LiteLLM: a chat, a stream, structured output, a demanded call."""

import json
import sys

import litellm

model = f"openai/{sys.argv[1]}"
litellm.telemetry = False
messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
schema = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "cloudy"]}},
    "required": ["sky"],
    "additionalProperties": False,  # bounded: a small model would add others until max_tokens
}
tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}

answer = litellm.completion(model=model, messages=messages, temperature=0, max_tokens=10)
assert answer.choices[0].message.content and answer.usage.completion_tokens

chunks = litellm.completion(
    model=model, messages=messages, temperature=0, max_tokens=10, stream=True
)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

wanted = {"type": "json_schema", "json_schema": {"name": "sky", "schema": schema}}
answer = litellm.completion(
    model=model, messages=messages, temperature=0, max_tokens=60, response_format=wanted
)
assert json.loads(answer.choices[0].message.content)["sky"] in ("clear", "cloudy")

answer = litellm.completion(
    model=model,
    messages=messages,
    temperature=0,
    max_tokens=60,
    tools=[tool],
    tool_choice="required",
)
assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
messages += [
    answer.choices[0].message.model_dump(),
    {"role": "tool", "tool_call_id": "x", "content": "clear"},
]
assert litellm.completion(model=model, messages=messages, temperature=0, max_tokens=10).choices
print("ok")
