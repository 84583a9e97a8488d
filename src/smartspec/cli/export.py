"""`smartspec export`: tables of draft lengths for engines that take them, and no plugin."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from smartspec.cli.scenario_options import Drafter, DraftModel, Hardware, Model, TensorParallel


class Engine(StrEnum):
    """Engines that take a table."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"


def export(
    engine: Annotated[Engine, typer.Argument(help="Whose form of the table to print.")],
    hardware: Hardware = "h100",
    model: Model = "8b",
    tensor_parallel: TensorParallel = 1,
    drafter: Drafter = "model",
    draft_model: DraftModel = None,
    acceptance: Annotated[float, typer.Option(min=0.0, max=1.0, help="Acceptance of a draft token.")] = 0.7,
    max_draft_tokens: Annotated[int, typer.Option(min=1, help="Longest draft.")] = 5,
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Largest batch.")] = 256,
) -> None:
    """Print the best draft length by batch size as JSON, in the form another engine reads.

    Example: smartspec export vllm --hardware h100 --model 70b --tensor-parallel 4
    """
    from smartspec.sim import length_table
    from smartspec.sim.scenario import Scenario

    scenario = Scenario(
        hardware=hardware,
        model=model,
        tensor_parallel=tensor_parallel,
        drafter=drafter,
        draft_model=draft_model,
        max_draft_tokens=max_draft_tokens,
        max_batch=max_batch,
        batch=1,
    )
    doubts = {Engine.SGLANG: (-length_table.ACCEPTANCE_DOUBT, 0.0, length_table.ACCEPTANCE_DOUBT)}.get(engine, (0.0,))
    tables = [length_table.length_table(scenario, min(max(acceptance + doubt, 0.0), 1.0)) for doubt in doubts]
    if engine is Engine.VLLM:
        config = length_table.vllm_config(tables[0])
    elif engine is Engine.SGLANG:
        config = length_table.sglang_config(tables)
    else:
        config = length_table.tensorrt_llm_config(tables[0])
    print(json.dumps(config))
