"""The helper process in which a grammar is compiled first: see grammar_check, which runs this file
as a program.

It holds llguidance and the tables of one tokenizer. Every definition is compiled in a fork of it.
The fork has limits of processor time (SIGPROF), time (SIGALRM), memory and stack. It starts in a
millisecond, and its end undoes all damage that a definition did. Input and output are lines of
JSON: first the tokenizer's, then one for each definition. Whatever walks over a client's schema
runs here.

Arguments of calls are closed: where a plain object names its properties, it has no others, for a
model that may add some goes on and on. Composed schemas go as they come, and with them all that
they refer to.
"""

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Limits of one step, in llguidance's own counts, as all requests wait for it: at most 14 ms (most
# take 0.1 ms).
LIMITS = {"initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 100_000, "step_max_items": 50_000}
MAX_COMPILE_SECONDS = 0.5  # of processor time
MAX_WAIT_SECONDS = 10.0  # on a machine that is busy with other things
MAX_COMPILE_BYTES = 2**27
THREAD_STACK_BYTES = 2**21  # of the server's threads where the main thread's stack has no limit
MAX_ERROR_CHARACTERS = 200
NICENESS = 5  # the engine goes first
# the grammars of a definition whose names begin so are schemas of a function's arguments
ARGUMENTS = "arguments_"
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
OPENING = {"additionalProperties", "unevaluatedProperties"}
DEFINITIONS = ("$defs", "definitions")
MAPS = ("properties", "patternProperties", *DEFINITIONS)  # of names to schemas
HOLDING = ("anyOf", "oneOf", "items", "prefixItems", "contains", *OPENING)  # a schema, or several
COMPOSING = {"allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
# Each may stand alone, as in a choice of objects; beside another one, several schemas hold for one
# object.
ALTERNATIVES = {"anyOf", "oneOf", "$ref"}
OF_OBJECTS = {"properties", "patternProperties", "required", "minProperties", *OPENING}


def read_tables(tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's tables of a vocabulary. tokenizer_json: of the tokenizers library."""
    return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)


def first_matcher(tables: LLTokenizer, definition: str) -> LLMatcher:
    """The matcher at the beginning of a grammar, with its first mask computed, the slow one: copies
    share what it has learned. Raises ValueError saying why it cannot be, or that nothing satisfies
    it."""
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
    for line in sys.stdin.buffer:
        print(json.dumps(_compile_in_fork(tables, json.loads(line))), flush=True)


def _compile_in_fork(tables: LLTokenizer, definition: str) -> dict:
    """{"error": what is wrong with it, or null, "num_bytes": what it took, "definition": with
    closed arguments} or {"signal": what has ended the fork}."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _compile(tables, definition, writing)
    os.close(writing)
    # the caller was cancelled
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
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
        definition = with_closed_arguments(definition)
        matcher = first_matcher(tables, definition)
    except Exception as refusal:
        error = str(refusal)[:MAX_ERROR_CHARACTERS]
    found = {"error": error}
    if matcher:
        found |= {"num_bytes": _memory() - num_bytes, "definition": definition}
    with os.fdopen(answer, "wb") as pipe:
        pipe.write(json.dumps(found).encode())
    os._exit(0)


def with_closed_arguments(definition: str) -> str:
    """Raises ValueError for arguments that are no object."""
    if ARGUMENTS not in definition:
        return definition
    grammar = json.loads(definition)
    for part in grammar["grammars"]:
        if part.get("name", "").startswith(ARGUMENTS):
            part["json_schema"] = closed(part["json_schema"])
    return json.dumps(grammar)


def closed(schema: dict) -> dict:
    """The schema of a function's arguments, which are an object, closed."""
    kinds = schema.get("type", "object")
    if "object" not in (
        [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else ()
    ):
        raise ValueError(f"the parameters of a function must be an object, not of type {kinds!r}")
    says = [key for key in OF_OBJECTS - OPENING | COMPOSING | ALTERNATIVES if schema.get(key)]
    if not says and all(schema.get(key, False) is False for key in OPENING):
        return schema | NO_ARGUMENTS
    left = _left(schema)
    return (schema if left is None else _closed(schema, left)) | {"type": "object"}


def _closed(schema: object, left: set[int]) -> object:
    """A schema, or a list of them. left: ids of those that stay as they are."""
    if isinstance(schema, list):
        return [_closed(part, left) for part in schema]
    if not isinstance(schema, dict) or id(schema) in left or _is_composed(schema):
        return schema
    found = dict(schema)
    for key in MAPS:
        if isinstance(parts := schema.get(key), dict):
            found[key] = {name: _closed(part, left) for name, part in parts.items()}
    for key in HOLDING:
        if key in schema:
            found[key] = _closed(schema[key], left)
    others = schema.get("unevaluatedProperties")
    if isinstance(others, bool):  # without alternatives it says what additionalProperties does
        del found["unevaluatedProperties"]
    if others is False or (not schema.keys() & OPENING and _names_all(schema)):
        found.setdefault("additionalProperties", False)
    return found


def _names_all(schema: dict) -> bool:
    """True if the schema describes properties, and all that it requires."""
    names, required = schema.get("properties"), schema.get("required") or []
    if not (names and isinstance(names, dict) and isinstance(required, list)):
        return False
    return {name for name in required if isinstance(name, str)} <= names.keys()


def _is_composed(schema: dict) -> bool:
    """True if several schemas hold for the same value: each closed by itself would forbid what the
    others name."""
    beside = schema.keys() & ALTERNATIVES
    return (
        bool(schema.keys() & COMPOSING)
        or len(beside) > 1
        or bool(beside and schema.keys() & OF_OBJECTS)
    )


def _left(schema: dict) -> set[int] | None:
    """Ids of the schemas that composed ones refer to, and those refer to; None where one is neither
    the root nor a definition of it."""
    places = {"#": schema}
    for key in DEFINITIONS:
        if isinstance(parts := schema.get(key), dict):
            for name, part in parts.items():
                places[f"#/{key}/" + name.replace("~", "~0").replace("/", "~1")] = part
    left: set[int] = set()
    waiting = [part for part in _parts(schema) if _is_composed(part)]
    while waiting:
        for part in _parts(waiting.pop()):
            if isinstance(reference := part.get("$ref"), str):
                if reference not in places:
                    return None
                if id(found := places[reference]) not in left:
                    left.add(id(found))
                    waiting.append(found)
    return left


def _parts(schema: object) -> Iterator[dict]:
    """The schema and all within it, and whatever looks like one."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


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
    # as the server's threads have it, of which half may be used
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = (THREAD_STACK_BYTES if stack == resource.RLIM_INFINITY else stack) // 2
    resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
    if sys.platform == "linux":
        resource.setrlimit(
            resource.RLIMIT_AS, (num_bytes + MAX_COMPILE_BYTES, num_bytes + MAX_COMPILE_BYTES)
        )


if __name__ == "__main__":
    main()
