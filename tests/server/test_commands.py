"""The parts of serve and generate that need no model."""

import io
import socket
import sys
from pathlib import Path

import pytest
import typer

from smartspec import __version__
from smartspec.cli import main
from smartspec.cli.generate import _read_prompt, generate
from smartspec.cli.serve import bind, ready_text


def test_a_port_in_use_is_named_with_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .* in use.*--port"):
            bind("127.0.0.1", port)


def test_port_0_takes_a_free_one():
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_ready_text_names_the_page_if_there_is_one():
    assert "http://a:1/ shows" in ready_text("http://a:1", "some-model", needs_key=False)
    assert "shows" not in ready_text("http://a:1", "some-model", needs_key=False, has_page=False)


def test_ready_text_shows_where_the_key_goes():
    text = ready_text("http://127.0.0.1:8000", "some-model", needs_key=True)
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in text and "Bearer" in text
    assert "Bearer" not in ready_text("http://127.0.0.1:8000", "some-model", needs_key=False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such\nmodel"), "no such model"),
        (FileNotFoundError("no such\nmodel"), "no such model"),
        (FileNotFoundError(2, "No such file", "/nowhere"), "/nowhere: No such file"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(monkeypatch, call, error, said):
    def fail():
        raise error

    monkeypatch.setattr(main, "_build_app", lambda: fail)
    assert call() == (2, "", f"error: {said}\n")


def test_version(call):
    assert call("--version") == (0, f"smartspec {__version__}\n", "")


def test_there_are_at_most_ten_commands():
    assert len(typer.main.get_command(main._build_app()).commands) <= 10


def test_without_typer_the_extra_is_named(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "typer", None)
    code, _, errors = call()
    assert code == 2 and ".[server]" in errors


@pytest.mark.parametrize("arguments", [{}, {"prompt": "a", "file": "b"}])
def test_generate_needs_one_prompt(arguments):
    with pytest.raises(ValueError, match="either a PROMPT or --file"):
        generate(**arguments)


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path, monkeypatch):
    (tmp_path / "prompt").write_bytes("\ufeffHi\r\nthere".encode())
    assert _read_prompt(None, tmp_path / "prompt") == "Hi\nthere"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffHi"))
    assert _read_prompt(None, Path("-")) == "Hi"
