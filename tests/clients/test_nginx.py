"""Clients behind nginx, as Debian's package has it: HTTP/1.0 to the server and buffers, or
HTTP/1.1."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
SCRIPT = Path(__file__).parent / "scripts" / "with_openai.py"
SECONDS_TO_START = 30
# Buffers hold a whole answer, so that one that is gathered comes in one piece.
CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        proxy_buffer_size 64k;
        proxy_buffers 8 64k;
        location / {{ proxy_pass {url}; }}
        location /new/ {{
            proxy_pass {url}/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
        }}
    }}
}}
"""

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="there is no nginx: `apt-get install nginx-light` installs it"
)


@pytest.fixture(scope="module")
def proxy(url, tmp_path_factory) -> Iterator[str]:
    """Where nginx passes requests on to the server."""
    folder = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address, path = f"http://127.0.0.1:{port}", folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(folder=folder, port=port, url=url))
    command = [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(path)]
    with subprocess.Popen(command) as nginx:
        try:
            deadline = time.monotonic() + SECONDS_TO_START
            while not answers(address):
                assert nginx.poll() is None and time.monotonic() < deadline, (
                    folder / "error.log"
                ).read_text()
            yield address
        finally:
            nginx.terminate()


def answers(address: str) -> bool:
    place = urlsplit(address)
    with socket.socket() as connection:
        return connection.connect_ex((place.hostname, place.port)) == 0


@pytest.mark.parametrize("path", ["", "/new"])
def test_streams_come_event_by_event(proxy, path):
    body = {
        "prompt": "Once upon a time",
        "max_tokens": 48,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    body["speculation"] = {"max_draft_tokens": 0}  # a token an event
    with httpx.stream("POST", f"{proxy}{path}/v1/completions", json=body, timeout=60) as answer:
        pieces = list(answer.iter_raw())
    text = b"".join(pieces)
    assert text.count(b"data: {") == 48 and text.endswith(b"data: [DONE]\n\n")
    assert len(pieces) > 8  # gathered, it would come in one or two


@pytest.mark.parametrize("path", ["", "/new"])
def test_a_client_works_as_without_a_proxy(run, proxy, path):
    model = httpx.get(f"{proxy}/v1/models").json()["data"][0]["id"]
    assert run("python", str(SCRIPT), model, base=f"{proxy}{path}").splitlines()[-1] == "ok"


def test_a_client_that_leaves_nginx_ends_its_request(url, proxy):
    body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{proxy}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_raw())
    deadline = time.monotonic() + 60
    while "smartspec_requests_running 0" not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < deadline, "it never ended"
