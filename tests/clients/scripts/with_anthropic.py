"""Anthropic's client: messages, streamed and not, a call of a tool and the conversation after it,
counted tokens, stop sequences, a continued answer, hints that change nothing, and errors."""

import json
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

said = client.messages.create(
    model=model, max_tokens=12, system="Answer in a word.", messages=[question]
)
assert said.content[0].text and said.stop_reason in ("end_turn", "max_tokens")
counted = client.messages.count_tokens(model=model, system="Answer in a word.", messages=[question])
assert counted.input_tokens == said.usage.input_tokens + said.usage.cache_read_input_tokens

called = client.messages.create(
    model=model, max_tokens=100, messages=[question], tools=[weather], tool_choice={"type": "any"}
)
(use,) = [block for block in called.content if block.type == "tool_use"]
assert called.stop_reason == "tool_use" and use.input["city"] in ("Paris", "Oslo")

result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain, 8 degrees"}
history = [
    question,
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [result]},
]
with client.messages.stream(
    model=model, max_tokens=20, messages=history, tools=[weather]
) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert final.usage.output_tokens > 0 and text == "".join(
    b.text for b in final.content if b.type == "text"
)

with client.messages.stream(
    model=model,
    max_tokens=100,
    messages=[question],
    tools=[weather],
    tool_choice={"type": "tool", "name": "get_weather"},
) as stream:
    final = stream.get_final_message()
assert [block.name for block in final.content] == ["get_weather"] and final.content[0].input["city"]

counting = {"role": "user", "content": "Count: one, two, three, four, five."}
stopped = client.messages.create(
    model=model,
    max_tokens=60,
    extra_body={"temperature": 0},
    messages=[counting],
    stop_sequences=["three", "two", ",", "."],
)
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence in (
    "three",
    "two",
    ",",
    ".",
)
with client.messages.stream(
    model=model,
    max_tokens=60,
    extra_body={"temperature": 0},
    messages=[counting],
    stop_sequences=["three", "two", ",", "."],
) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert final.stop_sequence == stopped.stop_sequence
assert (
    kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_start" in kinds
)

begun = [question, {"role": "assistant", "content": "The weather in Oslo is"}]
continued = client.messages.create(
    model=model, max_tokens=8, extra_body={"temperature": 0}, messages=begun
)
assert continued.content[0].text

search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
hints = {"context_management": {"edits": []}, "speed": "standard"}
answered = client.beta.messages.create(
    model=model,
    max_tokens=16,
    messages=[{"role": "user", "content": "Say hi."}, {"role": "system", "content": "Be short."}],
    tools=[weather, search],
    thinking={"type": "adaptive"},
    output_config={"effort": "medium"},
    betas=["context-management-2025-06-27"],
    extra_body=hints,
)
assert answered.type == "message"

schema = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
held = client.messages.create(
    model=model,
    max_tokens=60,
    messages=[question],
    output_config={"format": {"type": "json_schema", "schema": schema}},
)
assert isinstance(json.loads(held.content[0].text)["a"], bool)

for kind, fields in {
    anthropic.BadRequestError: {
        "tools": [weather, search],
        "tool_choice": {"type": "tool", "name": "web_search"},
    },
    anthropic.NotFoundError: {"model": "claude-of-elsewhere"},
}.items():
    try:
        client.messages.create(**{"model": model, "max_tokens": 5, "messages": [question]} | fields)
    except kind as error:
        assert error.body["type"] == "error" and error.request_id == error.body["request_id"]
        assert error.body["error"]["type"] in ("invalid_request_error", "not_found_error")
    else:
        raise AssertionError(f"{fields} was accepted")
print("ok")
