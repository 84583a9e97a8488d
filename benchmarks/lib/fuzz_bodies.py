"""Random requests to every endpoint of ours: most nearly right, some not even JSON."""

import json
import random

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
TEXTS = (
    "a",
    "",
    "\0",
    "🎉" * 20,
    "é\u202e",
    "<|im_end|>",
    "word " * 50,
    "{{ messages }}",
    '{"a": 1}',
    "\ud800",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3.5,
    -0.0,
    1e308,
    -1e-308,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**30,
    49151,
    49152,
)
FIELDS = (
    "model", "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "ignore_eos",
    "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "include_stop_str_in_output",
    "skip_special_tokens", "request_id", "stream", "stream_options", "priority", "cache_salt",
    "speculation", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "best_of", "tools",
    "tool_choice", "response_format", "guided_json", "guided_choice", "structured_outputs", "user",
    "metadata", "chat_template_kwargs", "continue_final_message", "add_generation_prompt",
    "messages", "prompt", "tokens", "suffix", "unknown",
)  # fmt: skip
SPECULATION = (
    "workload_class",
    "max_draft_tokens",
    "weight",
    "tpot_target_ms",
    "report",
    "unknown",
)


def random_request(chance: random.Random) -> tuple[str, bytes]:
    """Path and body. What is valid of them makes at most three tokens."""
    path = chance.choice(PATHS)
    body = {"max_tokens": chance.choice((1, 1, 2, 3, 0, -1, "1", 10**9))}
    body |= (
        {"messages": [{"role": "user", "content": chance.choice(TEXTS)}]} if "chat" in path else {}
    )
    body |= {"prompt": chance.choice(TEXTS)} if path in ("/v1/completions", "/tokenize") else {}
    body |= {"tokens": [chance.choice(NUMBERS[:4])] * 3} if path == "/detokenize" else {}
    if "v1" not in path:
        del body["max_tokens"]
    for _ in range(chance.randrange(4)):
        body[chance.choice(FIELDS)] = _value(chance, 2)
    if chance.random() < 0.3:
        body["speculation"] = {chance.choice(SPECULATION): _value(chance, 1)}
    data = json.dumps(body).encode()
    if chance.random() < 0.1:
        data = _damaged(chance, data)
    return path, data


def _value(chance: random.Random, depth: int) -> object:
    plain = (
        None,
        True,
        False,
        chance.choice(NUMBERS),
        chance.choice(TEXTS),
        float("nan"),
        float("inf"),
    )
    kind = chance.randrange(10 if depth else 7)
    if kind < 7:
        return plain[kind]
    if kind == 7:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    names = ("role", "content", "type", "text", "5", "include_usage", chance.choice(TEXTS))
    return {chance.choice(names): _value(chance, depth - 1) for _ in range(chance.randrange(4))}


def _damaged(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    odd = chance.choice(
        (b"1e999", b"9" * 5000, b"[" * 400 + b"]" * 400, bytes([chance.randrange(256)]))
    )
    return chance.choice(
        (data[:at], data[:at] + odd + data[at + 1 :], data.replace(b"1", odd, 1), b"", data + data)
    )
