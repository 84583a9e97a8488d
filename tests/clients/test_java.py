"""The JDK's own HTTP client, on which Spring AI, LangChain4j and JetBrains' assistants stand."""

import shutil
from pathlib import Path

import pytest

JAVA = shutil.which("java") if shutil.which("javac") else None
PROGRAM = Path(__file__).parent / "scripts" / "Chat.java"


@pytest.mark.skipif(
    JAVA is None, reason="there is no JDK: `apt-get install default-jdk-headless` installs it"
)
def test_the_http_client_of_java(run, url):
    assert run(JAVA, str(PROGRAM), url).splitlines()[-1] == "ok"
