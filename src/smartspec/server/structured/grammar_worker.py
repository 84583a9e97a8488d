"""The helper process in which a grammar is compiled first: see grammar_check, which runs this file as a program.

It holds llguidance and the tables of one tokenizer. Every definition is compiled in a fork of it. The fork has
limits of processor time (SIGPROF), time (SIGALRM), memory and stack. It starts in a millisecond, and its end undoes all
damage that a definition did. Input and output are lines of JSON: first the tokenizer's, then one for each definition.
"""

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Limits of one step, in llguidance's own counts, as all requests wait for it: at most 14 ms (most take 0.1 ms).
LIMITS = {"initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 100_000, "step_max_items": 50_000}
MAX_COMPILE_SECONDS = 0.5  # of processor time
MAX_WAIT_SECONDS = 10.0  # on a machine that is busy with other things
MAX_COMPILE_BYTES = 2**27
THREAD_STACK_BYTES = 2**21  # of the server's threads where the main thread's stack has no limit
MAX_ERROR_CHARACTERS = 200
NICENESS = 5  # the engine goes first


def read_tables(tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's tables of a vocabulary. tokenizer_json: of the tokenizers library."""
    return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)


def first_matcher(tables: LLTokenizer, definition: str) -> LLMatcher:
    """The matcher at the beginning of a grammar, with its first mask computed, the slow one: copies share what it has
    learned. Raises ValueError saying why it cannot be, or that nothing satisfies it."""
    limits = LLParserLimits(precompute_large_lexemes=False, verbose_errors=False, **LIMITS)
    matcher = LLMatcher(tables, definition, log_level=0, limits=limits)
    can_begin = not matcher.is_error() and any(matcher.compute_bitmask())
    if matcher.is_error():
        lines = matcher.get_error().split("<state>")[0].strip().splitlines()
        raise ValueError(" ".join(" ".join(lines).split())[:MAX_ERROR_CHARACTERS])
    if not can_begin:
        raise ValueError("no text satisfies it")
    return matcher


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # our input ends with the server
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    setup = json.loads(sys.stdin.buffer.readline())
    tables = read_tables(**setup)
    _say({"ready": True})
    for line in sys.stdin.buffer:
        _say(_compile_in_fork(tables, json.loads(line)))


def _say(answer: dict) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _compile_in_fork(tables: LLTokenizer, definition: str) -> dict:
    """{"error": what is wrong with it, or null, "num_bytes": what it took} or {"signal": what has ended the fork}."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _compile(tables, definition, writing)
    os.close(writing)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))  # the caller was cancelled
    with os.fdopen(reading, "rb") as answer:
        if sys.stdin in select.select([answer, sys.stdin], [], [])[0]:  # the server has ended
            os.kill(pid, signal.SIGKILL)
        text = answer.read()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if os.WIFEXITED(status) and text else {"signal": os.WTERMSIG(status)}


def _compile(tables: LLTokenizer, definition: str, answer: int) -> None:
    """Compiles a definition in the fork, then ends the fork."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # allocations that fail are told there
    num_bytes = _memory()
    _set_limits(num_bytes)
    error = matcher = None
    try:
        matcher = first_matcher(tables, definition)
    except Exception as refusal:
        error = str(refusal)
    num_bytes = _memory() - num_bytes if matcher else 0
    os.write(answer, json.dumps({"error": error, "num_bytes": num_bytes}).encode())
    os._exit(0)


def _memory() -> int:
    """Bytes of addresses that this process has; 0 where the system is not Linux."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _set_limits(num_bytes: int) -> None:
    """num_bytes: that the process has now."""
    signal.setitimer(signal.ITIMER_PROF, MAX_COMPILE_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WAIT_SECONDS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)  # as the server's threads have it, of which half may be used
    stack = (THREAD_STACK_BYTES if stack == resource.RLIM_INFINITY else stack) // 2
    resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes + MAX_COMPILE_BYTES, num_bytes + MAX_COMPILE_BYTES))


if __name__ == "__main__":
    main()
