"""What was observed, for the operator: `smartspec vllm observed [FILE or URL]`, or, where the command line's libraries
are missing, `python -m smartspec.vllm_plugin.observed`. numpy alone. See docs/observe.md."""

import argparse
import json
import logging
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
from smartspec.observation.records import Observation
from smartspec.observation.report import conclusions, longest_of, most_requests, summary, text
from smartspec.vllm_plugin.metrics_text import read_url
from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets
NUM_DRAWS = 8  # for intervals at the end of a log: vLLM waits for it
LONGEST, MOST_REQUESTS = 64, 65_536  # a draft, a batch
TABLES = {"vllm": "vllm.json", "sglang": "sglang.json", "tensorrt-llm": "tensorrt-llm.json"}
DOUBTS = (0.1, 0.9)  # quantiles of each length's speed: SGLang chooses among what is best within them


def tell(paths: list[Path]) -> None:
    """The end of the server's log: a short form of what its engines have written there, and a card beside the first.
    vLLM kills its engines at the end, unless it has time (--shutdown-timeout). Then the process that answers HTTP says
    it. Nothing where it was said already, or nothing was observed."""
    files = [path for path in paths if path.exists()]
    if not files or _is_newer(card_path(files[0]), files[0]):
        return
    try:
        observation = Observation.merged([read_observation(path) for path in files])
        Card.of(observation).write(card_path(files[0]))
        for line in conclusions(summary(Forecasts(observation, longest_of(observation), num_draws=NUM_DRAWS))):
            logger.info("SmartSpec observed: %s", line)
    except (ValueError, OSError) as error:
        logger.warning("SmartSpec says no more of what was observed: %s", error)


def card_path(path: Path) -> Path:
    """Of the card that belongs to an observation."""
    return path.parent.with_name("cards") / path.name


def _is_newer(path: Path, other: Path) -> bool:
    return path.exists() and path.stat().st_mtime_ns >= other.stat().st_mtime_ns


def tables_of(forecasts: Forecasts, least: int, most: int) -> dict[str, dict]:
    """Ready tables, by engine. least: shortest length that they name. most: largest batch. An engine is missing where
    no length pays."""
    by_size = best_lengths(forecasts, most, least)
    tables = {"vllm": vllm_config(ranges_of(by_size))}
    doubtful = [best_lengths(forecasts, most, least, quantile) for quantile in DOUBTS]
    tables["sglang"] = sglang_config([ranges_of(sizes) for sizes in (by_size, *doubtful)])
    if by_size[0]:
        tables["tensorrt-llm"] = tensorrt_llm_config(ranges_of(by_size))
    return tables


def best_lengths(forecasts: Forecasts, most: int, least: int, quantile: float | None = None) -> list[int]:
    """For batches of 1 to most requests: as of the largest power of two that is not larger. quantile: of the draws'
    best lengths, None for the likeliest forecast's."""
    found: list[int] = []
    while len(found) < most:
        size = len(found) + 1
        if quantile is None:
            best = forecasts.likeliest.best(size, least)
        else:
            bests = sorted(draw.best(size, least) for draw in forecasts.draws)
            best = bests[int(quantile * (len(bests) - 1))]
        found += [best] * min(size, most - len(found))
    return found


def read(source: str | None, cache: Path) -> Observation:
    """From a file, from a server's /metrics, or the newest of the cache folder. ValueError says what is wrong."""
    if source is None:
        return newest_observation(cache)[1]
    if source.startswith(("http://", "https://")):
        return read_url(source)
    return read_observation(Path(source))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smartspec vllm observed",
        description="What a server observed (`smartspec vllm serve MODEL --observe`): speed now, what each draft "
        "length would make at each load, the crossover, and what the present setting loses.",
        allow_abbrev=False,
    )
    parser.add_argument("source", nargs="?", help="file, or URL of a server (default: the newest of the cache folder)")
    parser.add_argument("--cache", type=Path, help="folder of the setting `cache`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--longest", type=int, metavar="K", help="longest draft to look at (default: the server's)")
    parser.add_argument("--tables", type=Path, metavar="FOLDER", help="write tables for vLLM, SGLang and TensorRT-LLM")
    parser.add_argument("--max-batch", type=int, metavar="N", help="of the tables (default: the server's limit)")
    parser.add_argument("--allow-zero", action="store_true", help="tables may name length 0 (docs/export.md)")
    parser.add_argument("--card", type=Path, metavar="FILE", help="write a card (docs/cards.md)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 on what the caller can set right, with one line."""
    options = make_parser().parse_args(arguments)
    try:
        report(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report(options: argparse.Namespace) -> None:
    """Prints, and writes what the options name. ValueError, OSError: what is wrong."""
    observation = read(options.source, options.cache or Settings.read(None, os.environ).cache)
    longest = longest_of(observation) if options.longest is None else options.longest
    head = observation.setup.get("most_drafts") or LONGEST
    if not 1 <= longest <= head:
        raise ValueError(f"--longest {longest}: the drafter drafts 1 to {head} tokens")
    forecasts = Forecasts(observation, longest)
    found = summary(forecasts)
    print(json.dumps(found) if options.json else text(found))
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
