"""`smartspec vllm observed [FILE]`, an observation for the operator, or, where the command
line's libraries are missing, `python -m smartspec.vllm_plugin.observed`. It needs numpy alone. See
docs/observe.md."""

import argparse
import json
import os
import sys
from pathlib import Path

from smartspec.observation.card import Card
from smartspec.observation.files import newest_observation, read_observation, write_json
from smartspec.observation.forecast import Forecasts
from smartspec.observation.length_tables import (
    ranges_of,
    sglang_config,
    tensorrt_llm_config,
    vllm_config,
)
from smartspec.observation.report import longest_of, most_requests, summary, text
from smartspec.vllm_plugin.settings import Settings

LONGEST, MOST_REQUESTS = 64, 65_536  # a draft, a batch
TABLES = {"vllm": "vllm.json", "sglang": "sglang.json", "tensorrt-llm": "tensorrt-llm.json"}
# quantiles of each length's speed: SGLang chooses among what is best within them
DOUBTS = (0.1, 0.9)


def tables_of(forecasts: Forecasts, least: int, most: int) -> dict[str, dict]:
    """Return ready tables by engine. least: shortest length that they name. most: largest batch. An
    engine is missing where no length pays."""
    by_size = best_lengths(forecasts, most, least)
    tables = {"vllm": vllm_config(ranges_of(by_size))}
    doubtful = [best_lengths(forecasts, most, least, quantile) for quantile in DOUBTS]
    tables["sglang"] = sglang_config([ranges_of(sizes) for sizes in (by_size, *doubtful)])
    if by_size[0]:
        tables["tensorrt-llm"] = tensorrt_llm_config(ranges_of(by_size))
    return tables


def best_lengths(
    forecasts: Forecasts, most: int, least: int, quantile: float | None = None
) -> list[int]:
    """Return lengths for batches of 1 to most requests: that of the largest power of two that is
    not larger. quantile: of the draws' best lengths, None for the likeliest forecast's."""
    lengths: list[int] = []
    while len(lengths) < most:
        size = len(lengths) + 1
        if quantile is None:
            best = forecasts.likeliest.best(size, least)
        else:
            bests = sorted(draw.best(size, least) for draw in forecasts.draws)
            best = bests[int(quantile * (len(bests) - 1))]
        lengths += [best] * min(size, most - len(lengths))
    return lengths


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smartspec vllm observed",
        description="What a server observed (`smartspec vllm serve MODEL --observe`): speed now, "
        "what each draft length would make at each load, the crossover, and what the present "
        "setting loses.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", nargs="?", type=Path, help="of an observation (default: the newest of the cache)"
    )
    parser.add_argument("--cache", type=Path, help="folder of the setting `cache`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--longest", type=int, metavar="K", help="longest draft to look at (default: the server's)"
    )
    parser.add_argument(
        "--tables",
        type=Path,
        metavar="FOLDER",
        help="write tables for vLLM, SGLang and TensorRT-LLM",
    )
    parser.add_argument(
        "--max-batch", type=int, metavar="N", help="of the tables (default: the server's limit)"
    )
    parser.add_argument(
        "--allow-zero", action="store_true", help="tables may name length 0 (docs/observe.md)"
    )
    parser.add_argument("--card", type=Path, metavar="FILE", help="write a card (docs/observe.md)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit status: 0, 2 with one line where the caller can set something right."""
    options = make_parser().parse_args(arguments)
    try:
        report(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report(options: argparse.Namespace) -> None:
    """Print a report, and write the files that the options name. ValueError and OSError say what is
    wrong."""
    if options.file is not None:
        observation = read_observation(options.file)
    else:
        observation = newest_observation(options.cache or Settings.read(None, os.environ).cache)
    longest = longest_of(observation) if options.longest is None else options.longest
    if not 1 <= longest <= LONGEST:
        raise ValueError(f"--longest {longest}: use 1 to {LONGEST}")
    forecasts = Forecasts(observation, longest)
    figures = summary(forecasts)
    print(json.dumps(figures) if options.json else text(figures))
    if options.tables is not None:
        most = most_requests(observation) if options.max_batch is None else options.max_batch
        if not 1 <= most <= MOST_REQUESTS:
            raise ValueError(f"--max-batch {most}: use 1 to {MOST_REQUESTS}")
        for engine, table in tables_of(forecasts, 0 if options.allow_zero else 1, most).items():
            write_json(options.tables / TABLES[engine], table)
            print(f"{options.tables / TABLES[engine]}", file=sys.stderr)
    if options.card is not None:
        Card.of(observation).write(options.card)
        print(f"{options.card}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
