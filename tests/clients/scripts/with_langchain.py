"""LangChain: structured output in each of its ways, tools, streams, a conversation with a tool's
answer."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    """A city."""

    name: str = Field(description="its name", max_length=20)  # bounded: a small model would go on
    population: int = Field(ge=0, le=100_000_000)


@tool
def get_weather(city: Literal["Oslo", "Paris"]) -> str:
    """The weather in a city."""
    return f"Rain in {city}"


chat = ChatOpenAI(model=sys.argv[1], temperature=0, max_tokens=300)
question = HumanMessage("Tell me about Oslo.")
for method in ("json_schema", "function_calling"):
    assert isinstance(chat.with_structured_output(City, method=method).invoke([question]), City), (
        method
    )

message = chat.bind_tools([get_weather], tool_choice="any").invoke([question])
(call,) = message.tool_calls
assert call["name"] == "get_weather" and call["args"]["city"] in ("Oslo", "Paris")
history = [
    question,
    message,
    ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]),
]
assert chat.bind(max_tokens=10).invoke(history).content

gathered = None
for chunk in chat.bind_tools([get_weather], tool_choice="get_weather").stream([question]):
    gathered = chunk if gathered is None else gathered + chunk
assert gathered.tool_calls[0]["name"] == "get_weather"
assert chat.bind(max_tokens=10).invoke("Hello").usage_metadata["output_tokens"] > 0
print("ok")
