"""OpenAI's client: chats, streams, structured output, tools, completions, responses."""

import json
import sys

import openai
from pydantic import BaseModel, Field

model = sys.argv[1]
client = openai.OpenAI()
question = {"role": "user", "content": "Describe Paris as JSON with its name and population."}


class City(BaseModel):  # bounded: a small model would go on
    name: str = Field(max_length=20)
    population: int = Field(ge=0, le=100_000_000)


weather = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

answer = client.chat.completions.create(
    model=model, messages=[question], max_tokens=16, temperature=0
)
assert answer.choices[0].message.content

parsed = client.chat.completions.parse(
    model=model, messages=[question], response_format=City, temperature=0, max_tokens=300
)
assert isinstance(parsed.choices[0].message.parsed, City)

called = client.chat.completions.create(
    model=model,
    messages=[question],
    tools=[weather],
    tool_choice="required",
    temperature=0,
    max_tokens=100,
).choices[0]
assert called.finish_reason == "tool_calls"
call = called.message.tool_calls[0]
assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")

history = [question, called.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain"}]
answers = client.chat.completions.create(
    model=model, messages=history, tools=[weather], temperature=0, max_tokens=16, stream=True
)
assert "".join(chunk.choices[0].delta.content or "" for chunk in answers)

streamed = client.chat.completions.create(
    model=model,
    messages=[question],
    tools=[weather],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    temperature=0,
    max_tokens=100,
    stream=True,
    stream_options={"include_usage": True},
)
deltas = [chunk.choices[0].delta for chunk in streamed if chunk.choices]
assert [call.function.name for delta in deltas for call in delta.tool_calls or ()] == [
    "get_weather"
]

assert (
    client.completions.create(model=model, prompt="One, two,", temperature=0, max_tokens=5)
    .choices[0]
    .text
)
response = client.responses.parse(
    model=model, input="Describe Oslo.", text_format=City, temperature=0, max_output_tokens=300
)
assert isinstance(response.output_parsed, City)
# Its get_final_response knows no answers that were cut, which OpenAI ends with another event.
with client.responses.stream(
    model=model, input="Say hello.", temperature=0, max_output_tokens=3
) as events:
    last = list(events)[-1]
assert last.type == "response.incomplete" and last.response.output_text
with client.responses.stream(
    model=model, input="Say OK.", text_format=City, temperature=0, max_output_tokens=300
) as events:
    assert isinstance(events.get_final_response().output_parsed, City)
print("ok")
