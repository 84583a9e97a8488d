"""OpenAI's agents: an agent with a tool, over the Responses API, streamed and not."""

import asyncio
import sys
from typing import Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
cities = []


@function_tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """The weather of a city."""
    cities.append(city)
    return "Rain, 8 degrees"


# The first answer must be a call; then the choice is the model's, which may call again: a small model does.
settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=100)
agent = Agent(
    name="weather", instructions="Answer in a word.", model=sys.argv[1], tools=[get_weather], model_settings=settings
)


async def main() -> None:
    result = await Runner.run(agent, "What is the weather in Oslo?", max_turns=8)
    assert cities and isinstance(result.final_output, str)
    num_calls = len(cities)
    streamed = Runner.run_streamed(agent, "What is the weather in Paris?", max_turns=8)
    async for _ in streamed.stream_events():
        pass
    assert isinstance(streamed.final_output, str) and len(cities) > num_calls


asyncio.run(main())
print("ok")
