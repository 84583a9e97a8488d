"""Bodies as command-line agents send them, with a conversation under way: answered whole and as a
stream."""

import json
import os
import sys
import urllib.request
from pathlib import Path

model = sys.argv[1]
bodies = Path(__file__).parents[2] / "agent_bodies"
PATHS = {"claude_code": "/v1/messages?beta=true", "codex": "/v1/responses"}
LAST = {"claude_code": "message_stop", "codex": "response.completed"}


def send(path: str, body: dict) -> tuple[str, dict]:
    data = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a-beta",
    }
    request = urllib.request.Request(os.environ["SMARTSPEC_URL"] + path, data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode(), dict(answer.headers)


for agent, path in PATHS.items():
    limit = {"claude_code": "max_tokens", "codex": "max_output_tokens"}[agent]
    body = json.loads((bodies / f"{agent}.json").read_text()) | {"model": model, "temperature": 0}
    whole = json.loads(send(path, body | {"stream": False, limit: 16})[0])
    assert whole.get("content") or whole.get("output"), whole
    text, headers = send(path, body | {limit: 100_000})
    events = [
        line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")
    ]
    assert events[-1] in (LAST[agent], "response.incomplete") and "error" not in events, events[-3:]
    clipped = next(
        value for name, value in headers.items() if name.lower() == "x-max-tokens-clipped"
    )
    assert 0 < int(clipped) < 100_000
print("ok")
