"""Options of `smartspec serve` from a file and from the environment, and what is wrong with
them."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer

from smartspec.cli.config_file import CLASSES, read_classes
from smartspec.cli.logs import LogFormat
from smartspec.cli.main import _build_app, run
from smartspec.cli.serve import serve
from smartspec.server.openai.generation_body import SpeculationBody

NO_DEFAULTS = {
    str: "some",
    int: 7,
    float: 7.5,
    bool: True,
    Path: Path("some"),
    LogFormat: LogFormat.JSON,
}
OPTIONS = {
    name: next(kind for kind in NO_DEFAULTS if kind in (hint, *get_args(hint)))
    for name, hint in get_type_hints(serve).items()
    if name not in ("config", "return")
}
SERVE = typer.main.get_command(_build_app()).commands["serve"]


def options(*arguments: str) -> dict:
    """What serve would be called with."""
    with SERVE.make_context("serve", list(arguments), **SERVE.context_settings) as context:
        return context.params


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "server.toml"
        path.write_text(text)
        return path

    return write


def test_the_command_line_goes_before_variables_and_those_before_the_file(config, monkeypatch):
    path = config(
        "port = 1\nmax-batch = 2\nmax_queue = 3\nno_page = true\ndrain-seconds = 4.5\npolicy = "
        '"off"\n'
    )
    monkeypatch.setenv("SMARTSPEC_MAX_BATCH", "20")
    monkeypatch.setenv("SMARTSPEC_PORT", "10")
    found = options("--config", str(path), "--port", "100")
    assert (found["port"], found["max_batch"], found["max_queue"], found["no_page"]) == (
        100,
        20,
        3,
        True,
    )
    assert (found["drain_seconds"], found["policy"], found["host"]) == (4.5, "off", "127.0.0.1")


@pytest.mark.parametrize(("name", "kind"), OPTIONS.items())
def test_every_option_has_a_variable_and_a_name_in_the_file(name, kind, config, monkeypatch):
    value = NO_DEFAULTS[kind]
    text = value.value if isinstance(value, LogFormat) else str(value)
    assert options()[name] != value
    assert options("--config", str(config(f'{name.replace("_", "-")} = "{text}"')))[name] == value
    monkeypatch.setenv(f"SMARTSPEC_{name.upper()}", text)
    assert options()[name] == value


def test_a_file_as_editors_on_windows_write_it(tmp_path):
    path = tmp_path / "server.toml"
    path.write_bytes("\ufeffport = 1\r\n\r\n[classes.chat]\r\nweight = 2.0\r\n".encode())
    assert options("--config", str(path))["port"] == 1
    assert read_classes(path).fill(SpeculationBody(workload_class="chat")).weight == 2.0


def test_what_kubernetes_sets_for_a_service_is_passed_over(monkeypatch, capsys):
    """Kubernetes documentation, "Environment variables" of a Service named smartspec with port
    8000."""
    place = "10.96.44.7"
    for name, value in {
        "SERVICE_HOST": place, "SERVICE_PORT": "8000", "SERVICE_PORT_HTTP": "8000",
        "PORT": f"tcp://{place}:8000", "PORT_8000_TCP": f"tcp://{place}:8000",
        "PORT_8000_TCP_PROTO": "tcp", "PORT_8000_TCP_PORT": "8000", "PORT_8000_TCP_ADDR": place,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SMARTSPEC_{name}", value)
    assert options()["port"] == 8000
    (line,) = capsys.readouterr().err.splitlines()
    assert "Service named smartspec is no port here, and passed over: enableServiceLinks" in line


def test_a_wrong_variable_is_named(monkeypatch, capsys):
    monkeypatch.setenv("SMARTSPEC_MAXBATCH", "3")
    monkeypatch.setenv("SMARTSPEC_CACHE", "/tmp")
    monkeypatch.setenv("SMARTSPEC_MAX_QUEUE", "many")
    with pytest.raises(typer.BadParameter, match=r"variable SMARTSPEC_MAX_QUEUE\)"):
        options()
    assert (
        capsys.readouterr().err.count("SMARTSPEC_MAXBATCH: did you mean SMARTSPEC_MAX_BATCH?") == 1
    )
    monkeypatch.setenv("SMARTSPEC_MAX_QUEUE", "0")  # a number that no engine takes
    with pytest.raises(SystemExit, match="2"):
        run(lambda: _build_app()(["serve"]))
    assert (
        "must be at least 1, got 0 (options from variables: SMARTSPEC_MAX_QUEUE)"
        in capsys.readouterr().err
    )


def test_the_file_has_a_variable(monkeypatch):
    monkeypatch.setenv("SMARTSPEC_CONFIG", "/nowhere/server.toml")
    with pytest.raises(FileNotFoundError):
        options()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", "no option prot: did you mean port?"),
        ("xyzzy = 1", r"no option xyzzy: there are .*port.*\[classes"),
        ("port = [1]", "port must be one value"),
        ("port = ", "is no TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(config, text, problem):
    with pytest.raises(ValueError, match=problem):
        options("--config", str(config(text)))


@pytest.mark.parametrize(
    "text", ["port = 8000.5", "port = true", 'max_batch = "many"', "no_page = 3"]
)
def test_values_of_another_type_are_refused(config, text):
    with pytest.raises(typer.BadParameter, match="should be a valid"):
        options("--config", str(config(text)))


def test_classes_fill_what_a_request_leaves_out(config):
    chat = f"[{CLASSES}.chat]\nweight = 2\ntpot_target_ms = 50.0\nttft_target_ms = 900.0\n"
    path = config(f"{chat}[{CLASSES}.bulk]\nmax_draft_tokens = 0\n")
    classes = read_classes(path)
    filled = classes.fill(SpeculationBody(workload_class="chat", weight=0.5))
    assert (filled.workload_class, filled.weight, filled.tpot_target_ms) == ("chat", 0.5, 50.0)
    assert filled.options().ttft_target_seconds == 0.9
    assert classes.fill(SpeculationBody(workload_class="bulk")).max_draft_tokens == 0
    other = SpeculationBody(workload_class="other", weight=3.0)
    assert classes.fill(other) is other
    assert read_classes(None).fill(other) is other


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[classes.chat]\nwieght = 1", "class 'chat' has no wieght: give"),
        ("[classes.chat]\nweight = 1000", "class 'chat', weight: .* got 1000"),
        ("classes = 3", "classes must be"),
        ("[classes]\nchat = 3", "class 'chat' must be a table"),
    ],
)
def test_what_is_wrong_with_a_class_is_named(config, text, problem):
    with pytest.raises(ValueError, match=problem):
        read_classes(config(text))
