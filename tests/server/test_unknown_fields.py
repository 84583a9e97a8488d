"""What a body holds that this server does not know: ignored at every depth and counted by name, or
refused."""

import json
from pathlib import Path

import pytest
from fake_server import MODEL, check_error, function, running_server, user
from prometheus_client import CollectorRegistry, Counter

from smartspec.server.live.ignored_fields import MAX_NAMES_OF_CLIENT, OTHER, IgnoredFields

BODIES = Path(__file__).parents[1] / "agent_bodies"
USER = user("Hello there")
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
HOSTED = (
    "web_search",
    "local_shell",
    "shell",
    "image_generation",
    "namespace",
    "mcp",
    "custom",
    "tool_search",
)


@pytest.fixture(scope="module")
def strict_server(tokenizer):
    with running_server(tokenizer, strict_fields=True) as server:
        yield server


def ignored(server) -> dict[str, float]:
    """How often each name was counted."""
    prefix = 'smartspec_ignored_fields_total{field="'
    found = server.metrics().items()
    return {name[len(prefix) : -2]: count for name, count in found if name.startswith(prefix)}


CHAT = {
    "cache_prompt": True,
    "options": {"num_ctx": 2048},
    "keep_alive": "5m",
    "messages": [USER | {"timestamp": 1, "id": "m"}],
    "stream": True,
    "stream_options": {"include_x": 1},
    "tools": [TOOL | {"cache_control": {}, "function": FUNCTION | {"defer_loading": True}}],
    "speculation": {"wieght": 2},
}
NAMES = {
    "cache_prompt",
    "options",
    "keep_alive",
    "timestamp",
    "id",
    "include_x",
    "cache_control",
    "defer_loading",
}


def test_unknown_fields_at_every_depth_are_ignored_and_counted(server):
    before = ignored(server)
    plain = server.said(messages=[USER], max_tokens=5)
    assert server.said(max_tokens=5, **CHAT | {"stream": False, "tools": []}) == plain
    assert server.chat(max_tokens=5, **CHAT).status_code == 200
    after = ignored(server)
    counted = {name: after[name] - before.get(name, 0) for name in after}
    assert {name for name, count in counted.items() if count} == NAMES | {"wieght"}
    assert counted["timestamp"] == 2 and counted["defer_loading"] == 1


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/completions", {"prompt": "a", "cache_prompt": True}, {"cache_prompt"}),
        ("/v1/responses", {"input": "a", "client_metadata": {}}, {"client_metadata"}),
        (
            "/v1/responses",
            {"input": [USER | {"x1": 1}], "reasoning": {"x2": 1}, "text": {"x3": 1}},
            {"x1", "x2", "x3"},
        ),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [USER | {"x4": 1}], "speed": "fast"},
            {"x4", "speed"},
        ),
        ("/v1/messages/count_tokens", {"messages": [USER], "betas": []}, {"betas"}),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, {"return_token_strs"}),
    ],
)
def test_on_every_path(server, strict_server, path, body, names):
    assert server.post(path, body).status_code == 200
    assert names <= ignored(server).keys()
    refused = strict_server.post(path, body)
    assert (
        refused.status_code == 400
        and "unknown or unsupported parameter" in refused.json()["error"]["message"]
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a", "x" * 1000: 1}, "x" * 77 + "..."),
        (
            "/v1/completions",
            {"prompt": "a", "stream_options": {"include_usage": True}},
            "stream_options",
        ),
        ("/v1/completions", {"prompt": "a", "max_tokens": 10**6}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "speculation": {"wieght": 2}}, "speculation.wieght"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "tools": [{"type": "web_search"}]},
            "tools[0].type",
        ),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
    ],
    ids=str,
)
def test_strict_fields_refuses_by_name(strict_server, path, body, param):
    answer = strict_server.post(path, body)
    check_error(answer, 400, param)


HINTS = {
    "functions": [],
    "stream_options": {"include_usage": True},
    "user": 5,
    "metadata": "x",
    "service_tier": 1,
    "verbosity": ["new"],
    "store": "yes",
    "web_search_options": {},
    "audio": {"voice": "x"},
    "mirostat": 0,
    "function_call": "auto",
    "extra_body": {},
    "reasoning_effort": "ultra",
}


def test_hints_of_other_clients_never_cost_the_answer(server):
    answer = server.chat(messages=[USER], max_tokens=2, **HINTS)
    assert answer.status_code == 200, answer.text


def test_whether_to_think_reaches_the_template_however_it_is_said(server, set_template):
    set_template("{{ enable_thinking }} {{ reasoning_effort }}")
    for fields, said in (
        ({"enable_thinking": False}, "False "),
        ({"thinking": {"type": "disabled"}}, "False "),
        ({"thinking": {"type": "enabled"}}, "True "),
        ({"reasoning": {"enabled": False, "effort": "low"}}, "False low"),
        ({"thinking": "x", "enable_thinking": "y", "reasoning": 3}, " "),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "True "),
        ({"reasoning_effort": "low"}, " low"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}}, " x"),
    ):
        assert server.said(messages=[USER], **fields).strip() == said.strip(), fields
    response = server.response(input="Hi", reasoning={"effort": "high", "summary": "auto"})
    assert response.output_text.strip() == "high"


@pytest.mark.parametrize("kind", HOSTED)
def test_hosted_tools_are_left_out_unless_demanded(server, kind):
    hosted, flat = {"type": kind, "name": "h"}, {"type": "function"} | FUNCTION
    bodies = {
        "/v1/chat/completions": {"messages": [USER], "max_tokens": 2, "tools": [hosted, TOOL]},
        "/v1/responses": {"input": "a", "max_output_tokens": 2, "tools": [hosted, flat]},
    }
    for path, body in bodies.items():
        assert server.post(path, body).status_code == 200
        answer = server.post(path, body | {"tool_choice": {"type": kind, "name": "h"}})
        check_error(answer, 400, "tool_choice", kind)
    assert ignored(server)[kind] == 4 - 2  # refused bodies are not counted
    tools = server.got("/v1/responses", bodies["/v1/responses"])["tools"]
    assert [tool["name"] for tool in tools] == ["f"]


def test_allowed_tools_are_those_offered(server):
    other = {"type": "function", "name": "other"}
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}],
    }
    body = {"input": "a", "tools": [{"type": "function"} | FUNCTION, other], "tool_choice": choice}
    answer = server.got("/v1/responses", body)
    assert [tool["name"] for tool in answer["tools"]] == ["f"] and answer["tool_choice"] == "auto"
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
    chat = {
        "messages": [USER],
        "tools": [TOOL, function("other")],
    }
    asked = [
        server.got("/tokenize", chat | more)["count"] for more in ({"tool_choice": choice}, {})
    ]
    assert asked[0] < asked[1]


@pytest.mark.parametrize(
    ("agent", "path"), [("claude_code", "/v1/messages?beta=true"), ("codex", "/v1/responses")]
)
def test_bodies_as_agents_send_them(tokenizer, set_template, agent, path):
    """The fake server's context is short: nothing but the last message goes into it."""
    set_template("{{ messages[-1].content }}{# tools #}")
    body = json.loads((BODIES / f"{agent}.json").read_text()) | {"model": MODEL}
    with running_server(tokenizer) as server:
        whole = server.post(path, body | {"stream": False})
        assert whole.status_code == 200, whole.text
        streamed = server.post(path, body)
        last = {"claude_code": "event: message_stop", "codex": "event: response.completed"}[agent]
        assert last in streamed.text and "event: error" not in streamed.text
        assert ignored(server)["web_search" if agent == "codex" else "context_management"] == 2


def test_names_are_bounded_and_no_client_takes_the_room_of_others():
    counter = Counter("ignored", "", ["field"], registry=CollectorRegistry())
    fields = IgnoredFields(counter)
    for number in range(10 * MAX_NAMES_OF_CLIENT):
        fields.count([f"junk {number}"], "one")
    fields.count(["speed", "x" * 1000], "other")
    samples = [sample for sample in counter.collect()[0].samples if sample.name == "ignored_total"]
    found = {sample.labels["field"]: sample.value for sample in samples}
    assert found["speed"] == found["x" * 64] == 1 and found[OTHER] == 9 * MAX_NAMES_OF_CLIENT
    assert len([name for name in found if name.startswith("junk")]) == MAX_NAMES_OF_CLIENT
