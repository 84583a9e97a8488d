"""Contents of messages as clients send them: a text, or parts. This server reads text alone.

Parts that are text are joined. What the model would have to see or hear is refused by name. Other
parts, such as notes of other servers in a history, are left out.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ValidationInfo

from smartspec.server.http.body_model import ignore, is_strict

TEXT = ("text", "input_text", "output_text", "refusal")
MEDIA = ("image", "audio", "video", "file", "document")  # words in the types of such parts
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")  # no part of what was said
TEXT_FIELDS = ("text", "refusal", "content")  # where a part has its text


class TextPart(BaseModel):
    """A part of a content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


def join_text(content: object, info: ValidationInfo) -> object:
    """The text of a content in parts; anything else as it is. Raises ValueError naming a part that
    is no text."""
    if not isinstance(content, list):
        return content
    return "".join(
        text_of_part(part, f"part {number}", info) for number, part in enumerate(content)
    )


def text_of_part(part: object, name: str, info: ValidationInfo) -> str:
    """name: of the part in errors."""
    if isinstance(part, str) and not is_strict(info):
        return part
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError(f'{name} must be {{"type": "text", "text": ...}}')
    kind = part["type"]
    if kind in TEXT and not (is_strict(info) and kind == "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ValueError(f"{name} of type {kind} must have a text")
        ignore(
            info,
            {name for name, value in part.items() if value is not None}
            - {"type", "text", "refusal"},
        )
        return text
    return _text_of_other(part, kind, name, info)


def _text_of_other(part: dict, kind: str, name: str, info: ValidationInfo) -> str:
    source = part.get("source")
    if (
        kind == "document"
        and isinstance(source, dict)
        and source.get("type") in ("text", "content")
    ):
        part = {"content": source.get("data", source.get("content"))}
    elif is_strict(info) or any(word in kind for word in MEDIA):
        raise ValueError(f"{name} is of type {kind[:64]}, and this server reads text alone")
    ignore(info, {kind})
    text = next((part[field] for field in TEXT_FIELDS if part.get(field)), "")
    if kind in THOUGHTS or not isinstance(text, str | list):
        return ""
    return text if isinstance(text, str) else str(join_text(text, info))


# A content, which must be there and may be empty.
Content = Annotated[str, BeforeValidator(join_text, json_schema_input_type=str | list[TextPart])]
