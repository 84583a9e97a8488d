"""Every `vllm serve` of the pages, and what their Helm values come to, is read by vLLM's own parser
as it is meant."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from vllm.benchmarks.serve import add_cli_args
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

from smartspec.vllm_plugin.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / f"{name}.md").read_text() for name in ("vllm", "vllm-how"))
BLOCKS = [
    re.sub("^    ", "", block, flags=re.MULTILINE)
    for block in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
]
COMMANDS = [
    line.partition("  #")[0]
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("vllm serve")
]


def yaml_block(title: str) -> str:
    """The block whose first line is this comment."""
    return next(block for block in BLOCKS if block.startswith(f"# {title}\n"))


def parsed(arguments: list[str], folder: Path) -> AsyncEngineArgs:
    """What vLLM understands; exits or raises where it does not."""
    (folder / "smartspec.yaml").write_text(yaml_block("smartspec.yaml"))
    arguments = [str(folder / word) if word == "smartspec.yaml" else word for word in arguments]
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["serve", *arguments]))


def test_the_benchmark_command():
    (command,) = [
        line
        for block in BLOCKS
        for line in block.replace("\\\n", " ").splitlines()
        if "bench serve" in line
    ]
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    options = parser.parse_args(shlex.split(command)[3:])
    assert (
        options.base_url == "http://localhost:8000"
        and options.max_concurrency == 8
        and options.num_prompts == 200
    )


def assert_ours(engine: AsyncEngineArgs) -> None:
    assert engine.scheduler_cls == "smartspec.vllm_plugin.Scheduler"
    assert engine.speculative_config["num_speculative_tokens"] > 0
    Settings.read(engine.additional_config, {})


def test_the_page_has_command_lines():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line(command, tmp_path):
    engine = parsed(shlex.split(command)[2:], tmp_path)
    assert_ours(engine)
    for option, value in re.findall(r"--([a-z-]+(?:size|nnodes|rank)) (\d+)", command):
        assert getattr(engine, option.replace("-", "_")) == int(value)


@pytest.mark.parametrize(
    ("title", "keys"),
    [
        ("production-stack", ("servingEngineSpec", "modelSpec", 0, "vllmConfig", "extraArgs")),
        ("llm-d", ("decode", "containers", 0, "args")),
    ],
)
def test_values_of_a_chart(title, keys, tmp_path):
    values = yaml.safe_load(yaml_block(title))
    for key in keys:
        values = values[key]
    assert_ours(parsed(["MODEL", *values], tmp_path))


def test_settings_of_the_page():
    (example,) = re.findall(r"--additional-config '(.*?)'", PAGE)
    assert Settings.read(json.loads(example), {}).policy == "uniform:1,3"
