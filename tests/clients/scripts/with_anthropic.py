"""Anthropic's client: messages, streamed and not, a call of a tool and the conversation after it, counted tokens."""

import os
import sys

import anthropic

model = sys.argv[1]
client = anthropic.Anthropic(base_url=os.environ["SMARTSPEC_URL"], api_key="unused")
question = {"role": "user", "content": "What is the weather in Oslo?"}
weather = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}

said = client.messages.create(model=model, max_tokens=12, system="Answer in a word.", messages=[question])
assert said.content[0].text and said.stop_reason in ("end_turn", "max_tokens")
counted = client.messages.count_tokens(model=model, system="Answer in a word.", messages=[question])
assert counted.input_tokens == said.usage.input_tokens + said.usage.cache_read_input_tokens

called = client.messages.create(
    model=model, max_tokens=100, messages=[question], tools=[weather], tool_choice={"type": "any"}
)
(use,) = [block for block in called.content if block.type == "tool_use"]
assert called.stop_reason == "tool_use" and use.input["city"] in ("Paris", "Oslo")

result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain, 8 degrees"}
history = [question, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
with client.messages.stream(model=model, max_tokens=20, messages=history, tools=[weather]) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert final.usage.output_tokens > 0 and text == "".join(b.text for b in final.content if b.type == "text")

with client.messages.stream(
    model=model,
    max_tokens=100,
    messages=[question],
    tools=[weather],
    tool_choice={"type": "tool", "name": "get_weather"},
) as stream:
    final = stream.get_final_message()
assert [block.name for block in final.content] == ["get_weather"] and final.content[0].input["city"]

try:
    client.messages.create(model=model, max_tokens=5, messages=[question], tools=[{"type": "web_search_20250305"}])
except anthropic.BadRequestError as error:
    assert "tools[0]" in str(error)
else:
    raise AssertionError("a tool of Anthropic's own was accepted")
print("ok")
