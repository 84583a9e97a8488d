"""How models write calls of tools: marks around them, and JSON or tags between. A model's chat
template tells which.

Formats are those that vLLM's and SGLang's parsers read. What is none of a format's calls is text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from smartspec.server.structured.json_text import may_begin_json, read_first_json, read_json

MAX_DECODED = 2  # times that arguments may have been encoded as strings
# before arguments, as Mistral's newer models
_NAME = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_CUT_NAME = re.compile(r"[\w.\-\[\]]*")
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,256})>\n?")


@dataclass(frozen=True)
class CallFormat:
    """templates: what chat templates of such models have, one of these. begin: the marks before
    calls. end: the mark after a call, which text may follow; "" where calls go on to the end of the
    text. between: marks that may stand there, too. is_bare: calls may be the whole text, without a
    mark. has_names: a name may stand before arguments. has_tags: a call may be tags,
    <function=NAME><parameter=NAME>VALUE."""

    templates: tuple[str, ...]
    begin: tuple[str, ...]
    end: str = ""
    between: tuple[str, ...] = ()
    is_bare: bool = False
    has_names: bool = False
    has_tags: bool = False

    def write(self, calls: Sequence[dict]) -> str:
        """The text of calls, {"name": ..., "arguments": {...}} each, for templates that write
        none."""
        texts = [json.dumps(call, ensure_ascii=False) for call in calls]
        if self.end:
            return "\n".join(f"{self.begin[0]}\n{text}\n{self.end}" for text in texts)
        return f"{self.begin[0]}[{', '.join(texts)}]{''.join(self.between[:1])}"

    def parse(self, text: str, schemas: Mapping[str, dict]) -> tuple[list["Found"], str]:
        """The calls that a text is, and what of it is left. schemas: of the arguments of each
        tool."""
        if self.has_tags and (function := _FUNCTION.fullmatch(text)):
            return [_of_tags(*function.groups(), schemas)], ""
        found: list[Found] = []
        while text := self._without_marks(text):
            name, begin = self._name_before(text)
            try:
                value, size = read_first_json(text[begin:])
            except ValueError:
                break
            if self.end and text[size:].strip():
                break
            calls = _calls(value if name is None else {"name": name, "arguments": value})
            if not calls:
                break
            found, text = found + calls, text[begin + size :]
        return found, text

    def may_begin_call(self, text: str) -> bool:
        """True if more text could make a call of it."""
        text = text.lstrip()
        marks = (*self.begin, *self.between, *(["<function="] if self.has_tags else []))
        if any(mark.startswith(text[: len(mark)]) for mark in marks):
            return True
        _, begin = self._name_before(text)
        return may_begin_json(text[begin:]) or bool(self.has_names and _CUT_NAME.fullmatch(text))

    def _name_before(self, text: str) -> tuple[str | None, int]:
        """The name that stands before arguments, and where these begin."""
        name = _NAME.match(text) if self.has_names else None
        return (name[1], name.end()) if name else (None, 0)

    def _without_marks(self, text: str) -> str:
        """The text from the next call on."""
        marks = "|".join(map(re.escape, (*self.begin, *self.between, ";")))
        return re.sub(rf"^(?:\s|{marks})+", "", text)


# Qwen and SmolLM2, too; where a template tells of no other
HERMES = CallFormat((), ("<tool_call>",), "</tool_call>")
FORMATS = (
    CallFormat(("<function=",), ("<tool_call>",), "</tool_call>", has_tags=True),  # Qwen3-Coder
    CallFormat(("[TOOL_CALLS]",), ("[TOOL_CALLS]",), has_names=True),  # Mistral
    CallFormat(  # Granite 3, Phi-4
        ("<|tool_call|>", "<|start_of_role|>tools", "available_tools", "<|tool|>"),
        ("<|tool_call|>", "<tool_call>", "functools"),
        between=("<|/tool_call|>", "</tool_call>"),
    ),
    CallFormat(  # Llama 3
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        ("<|python_tag|>",),
        is_bare=True,
    ),
)

Found = tuple[str, dict]  # the name of a tool and its arguments


def format_of(template: str) -> CallFormat:
    return next(
        (each for each in FORMATS if any(words in template for words in each.templates)), HERMES
    )


def _calls(value: object) -> list[Found]:
    """The call, or list of calls, that a value is; none if it is anything else."""
    calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if None not in calls else []


def _call(found: object) -> Found | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    given = (found.get(name) for name in ("arguments", "parameters"))
    arguments = arguments_object(next((value for value in given if value is not None), None))
    return None if arguments is None else (found["name"], arguments)


def arguments_object(value: object) -> dict | None:
    """The arguments that a model meant: an object, that object's JSON as a string, or nothing.
    None: none of these."""
    for _ in range(MAX_DECODED):
        if not isinstance(value, str):
            break
        try:
            value = read_json(value) if value.strip() else None
        except ValueError:
            return None
    return {} if value is None else value if isinstance(value, dict) else None


def _of_tags(name: str, body: str, schemas: Mapping[str, dict]) -> Found:
    properties = schemas.get(name, {}).get("properties")
    kinds = properties if isinstance(properties, dict) else {}
    return name, {key: _value(text, kinds.get(key)) for key, text in _parameters(body)}


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Names and texts. Each character is read a few times at most, whatever a model writes."""
    at = 0
    while (begin := _PARAMETER.search(body, at)) and (
        end := body.find("</parameter>", begin.end())
    ) >= 0:
        yield begin[1], body[begin.end() : end].removesuffix("\n")
        at = end


def _value(text: str, schema: object) -> object:
    """The text itself where it may be one, or where nothing is known of it; else the JSON that it
    is."""
    if not isinstance(schema, dict) or (
        schema.get("type", "string") == "string" and "anyOf" not in schema
    ):
        return text
    try:
        return read_json(text.lower() if schema.get("type") == "boolean" else text)
    except ValueError:
        return text
