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
    lengths: Annotated[
        str | None,
        typer.Option(
            help="vllm: lengths to choose from, as 1,3,5; each is in the table, so that its graphs are captured."
        ),
    ] = None,
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
        max_draft_tokens=max_draft_tokens if lengths is None else max(_numbers(lengths)),
        max_batch=max_batch,
        batch=1,
    )
    doubts = {Engine.SGLANG: (-length_table.ACCEPTANCE_DOUBT, 0.0, length_table.ACCEPTANCE_DOUBT)}.get(engine, (0.0,))
    tables = [length_table.length_table(scenario, min(max(acceptance + doubt, 0.0), 1.0)) for doubt in doubts]
    if lengths is not None and engine is not Engine.VLLM:
        raise ValueError(f"--lengths {lengths} is for vllm: {engine} has no such graphs")
    if engine is Engine.VLLM:
        table = tables[0] if lengths is None else length_table.with_lengths(tables[0], _numbers(lengths))
        config = length_table.vllm_config(table)
    elif engine is Engine.SGLANG:
        config = length_table.sglang_config(tables)
    else:
        config = length_table.tensorrt_llm_config(tables[0])
    print(json.dumps(config))


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--lengths {text}: name numbers of draft tokens, for example 1,3,5")
    return tuple(int(part) for part in parts)
