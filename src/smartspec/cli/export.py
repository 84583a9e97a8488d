"""`smartspec export`: tables of draft lengths for engines that take them, and no plugin."""

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from typer import Argument, Option

from smartspec.cli.options import command
from smartspec.cli.scenario_options import scenario_options, settings_of


class Engine(StrEnum):
    """Engines that take a table."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"


@dataclass(frozen=True, kw_only=True)
class Table:
    """The options of a table, beside the scenario it is for."""

    engine: Annotated[Engine, Argument(help="Engine whose table format is printed.")]
    acceptance: Annotated[float, Option(min=0.0, max=1.0, help="Acceptance of a draft token.")] = (
        0.7
    )
    max_draft_tokens: Annotated[int, Option(min=1, help="Longest draft.")] = 5
    lengths: Annotated[
        str | None,
        Option(
            help=(
                "vllm: lengths to choose from, as 1,3,5; each is in the table, so that its graphs "
                "are captured."
            )
        ),
    ] = None
    max_batch: Annotated[
        int,
        Option(
            min=1,
            max=1024,
            help="Largest batch: the engine's limit of requests at once, or more. In larger ones "
            "vLLM and SGLang keep the last length, TensorRT-LLM drafts nothing.",
        ),
    ] = 256
    allow_zero: Annotated[
        bool,
        Option(
            "--allow-zero",
            help="Write a length of 0 where no drafts are best, instead of the shortest length.",
        ),
    ] = False

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """The lengths to choose from, where they are given. ValueError for what is none."""
        if self.lengths is None:
            return None
        parts = self.lengths.split(",")
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise ValueError(
                f"--lengths {self.lengths}: name numbers of draft tokens, for example 1,3,5"
            )
        return tuple(int(part) for part in parts)


@command(Table, scenario_options("hardware", "model", "tensor_parallel", "drafter", "draft_model"))
def export(options: Table, **given) -> None:
    """Print the best draft length by batch size as JSON, in the form another engine reads.

    A length of 0 is not written without --allow-zero. With a length of 0 these engines feed the
    drafter nothing, so its KV lacks the tokens of that time. Its drafts are then bad for the rest
    of every request under way.

    Example: smartspec export vllm --hardware h100 --model 70b --tensor-parallel 4
    """
    from smartspec.observation import length_tables
    from smartspec.sim import length_table
    from smartspec.sim.scenario import Scenario

    lengths, chosen = options.chosen, options.chosen or (1,)
    if lengths is not None and options.engine is not Engine.VLLM:
        raise ValueError(
            f"--lengths {options.lengths} is for vllm: {options.engine} has no such graphs"
        )
    longest = options.max_draft_tokens if lengths is None else max(lengths)
    scenario = Scenario(
        max_draft_tokens=longest, max_batch=options.max_batch, batch=1, **settings_of(given)
    )
    doubt = length_table.ACCEPTANCE_DOUBT
    doubts = (-doubt, 0.0, doubt) if options.engine is Engine.SGLANG else (0.0,)
    tables = [
        length_table.length_table(scenario, min(max(options.acceptance + d, 0.0), 1.0))
        for d in doubts
    ]
    least = 0 if options.allow_zero else min(chosen)
    zeros = [size for table in tables for size, best in enumerate(table, 1) if best < min(chosen)]
    if zeros:
        sizes = f"{min(zeros)} to {max(zeros)}"
        print(_about_zero(scenario.drafter, sizes, least), file=sys.stderr)
    if lengths is not None:
        tables = [length_tables.with_lengths(tables[0], lengths, least)]
    else:
        tables = [[max(best, least) for best in table] for table in tables]
    if options.engine is Engine.SGLANG:
        config = length_tables.sglang_config(tables)
    elif options.engine is Engine.VLLM:
        config = length_tables.vllm_config(tables[0])
    else:
        config = length_tables.tensorrt_llm_config(tables[0])
    print(json.dumps(config))


def _about_zero(drafter: str, sizes: str, least: int) -> str:
    """least: the length that is written where no drafts are best."""
    why = (
        "few drafts are right after a length of 0, as the drafter's KV lacks what was generated "
        "meanwhile"
    )
    if drafter == "lookup":
        why = "which does no harm to a lookup, as it has no KV"
    best = (
        f"warning: no drafts are best for some batches of {sizes} requests, and {least} is written"
    )
    if not least:
        return f"{best}: {why}"
    return (
        f"{best}; --allow-zero writes 0 ({why}). If batches are seldom smaller, serve without "
        "drafts"
    )
