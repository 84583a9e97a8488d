"""OpenAI's agents: an agent with tools over several turns, streamed and not, over responses and
chat completions."""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
model = sys.argv[1]
called = []
City = Literal["Paris", "Oslo"]


@function_tool
def get_weather(city: City) -> str:
    """The weather of a city."""
    called.append(("get_weather", city))
    return "Rain, 8 degrees"


@function_tool
def book_train(city: City) -> str:
    """Book a train to a city."""
    called.append(("book_train", city))
    return "Booked, seat 12"


class Trip(BaseModel):
    city: City
    days: int = Field(ge=1, le=9)


# The first answer of a turn must be a call; then the choice is the model's, which may call again: a
# small model does.
settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=100)
common = {"name": "travel", "instructions": "Answer in a word.", "model_settings": settings}
tools = [get_weather, book_train]
agent = Agent(**common, model=model, tools=tools)
over_chats = Agent(**common, model=OpenAIChatCompletionsModel(model, AsyncOpenAI()), tools=tools)


async def turns(agent: Agent) -> None:
    """Three turns of one conversation, each with what was said, called and returned before."""
    history: list = []
    for number, request in enumerate(
        ("What is the weather in Oslo?", "Book a train to Oslo.", "And in Paris?")
    ):
        num_called = len(called)
        history.append({"role": "user", "content": request})
        if number == 1:
            result = Runner.run_streamed(agent, history, max_turns=8)
            kinds = [
                event.name
                async for event in result.stream_events()
                if event.type == "run_item_stream_event"
            ]
            assert kinds.index("tool_called") < kinds.index("tool_output")
        else:
            result = await Runner.run(agent, history, max_turns=8)
        assert isinstance(result.final_output, str) and len(called) > num_called, request
        history = result.to_input_list()
    kinds = [item.get("type", "message") for item in history]
    assert kinds.count("function_call") == kinds.count("function_call_output") >= 3


async def main() -> None:
    for each in (agent, over_chats):
        await turns(each)
    planner = Agent(
        name="planner",
        model=model,
        tools=[book_train],
        output_type=Trip,
        model_settings=ModelSettings(temperature=0, max_tokens=200, parallel_tool_calls=False),
    )
    trip = await Runner.run(planner, "Two days in Oslo, as JSON with city and days.", max_turns=8)
    assert isinstance(trip.final_output, Trip)


asyncio.run(main())
print("ok")
