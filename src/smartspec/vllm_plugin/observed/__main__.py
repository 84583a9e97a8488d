"""`smartspec vllm observed [FILE or URL]`, an observation for the operator, or, where the command
line's libraries are missing, `python -m smartspec.vllm_plugin.observed`. It needs numpy alone. See
docs/observe.md."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import numpy as np

from smartspec.observation.card import Card
from smartspec.observation.files import newest_observation, read_observation, write_json
from smartspec.observation.forecast import Forecasts
from smartspec.observation.length_tables import sglang_config, tensorrt_llm_config, vllm_config
from smartspec.observation.records import Observation
from smartspec.observation.report import longest_of, most_requests, summary, text
from smartspec.vllm_plugin.metrics_page import fetch, samples
from smartspec.vllm_plugin.settings import Settings

LONGEST, MOST_REQUESTS = 64, 65_536  # a draft, a batch
URL = re.compile(r"\w+://.*|[^/]+:\d+(/|/v1|/metrics)?")
# quantiles of each length's speed: SGLang chooses among what is best within them
DOUBTS = (0.1, 0.9)


def tables_of(forecasts: Forecasts, least: int, most: int) -> dict[str, dict]:
    """Return ready tables by engine. least: shortest length that they name. most: largest batch. An
    engine is missing where no length pays."""
    sizes = [2**n for n in range(most.bit_length())]  # for larger ones, too, up to the next

    def table(best: list[int]) -> list[int]:
        return [best[size.bit_length() - 1] for size in range(1, most + 1)]

    likeliest = [forecasts.likeliest.best(size, least) for size in sizes]
    draws = [[draw.best(size, least) for size in sizes] for draw in forecasts.draws]
    doubtful = np.quantile(draws, DOUBTS, axis=0, method="lower").astype(int).tolist()
    tables = {
        "vllm": vllm_config(table(likeliest)),
        "sglang": sglang_config([table(best) for best in (likeliest, *doubtful)]),
    }
    if likeliest[0]:
        tables["tensorrt-llm"] = tensorrt_llm_config(table(likeliest))
    return tables


def read(source: str | None, cache: Path) -> Observation:
    """Return the observation of a file, of a server, or the newest of the cache folder. ValueError
    says what is wrong."""
    if source is None:
        return newest_observation(cache)
    return read_url(source) if URL.fullmatch(source) else read_observation(Path(source))


def read_url(url: str) -> Observation:
    """Return the observation of a server on this machine, all its engines together."""
    page = samples(fetch(url))
    paths = [Path(labels["path"]) for name, labels, _ in page if name == "observation_info"]
    if not paths:
        raise ValueError(
            f"{url} tells no observation: start the server with --observe and send requests. Where "
            "it cannot write to its cache folder, its log says so"
        )
    if gone := [path for path in paths if not path.is_file()]:
        raise ValueError(
            f"{url} observes into {gone[0]}, which is not on this machine: kubectl exec POD -- "
            "smartspec vllm observed"
        )
    return Observation.merged(list(map(read_observation, paths)))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smartspec vllm observed",
        description="What a server observed (`smartspec vllm serve MODEL --observe`): speed now, "
        "what each draft length would make at each load, the crossover, and what the present "
        "setting loses.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        nargs="?",
        help="file, or URL of a server on this machine (default: the newest of the cache)",
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
    cache = options.cache or Settings.read(None, os.environ).cache
    observation = read(options.source, cache)
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
            path = options.tables / f"{engine}.json"
            write_json(path, table)
            print(path, file=sys.stderr)
    if options.card is not None:
        Card.of(observation).write(options.card)
        print(options.card, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
