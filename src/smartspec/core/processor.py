"""What a machine says of its processor."""

import platform
import re
from pathlib import Path


def processor_fact(*names: str) -> str:
    """What stands under the first of these names that the system has (Linux: /proc/cpuinfo); an
    empty text where it does not tell."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(rf"^(?:{'|'.join(names)})\s*: *(.*?) *$", text, re.MULTILINE)
    return found[1] if found else ""


def processor_name() -> str:
    """The name of the processor."""
    return processor_fact("model name") or platform.processor() or platform.machine()
