"""A server's /metrics, as the commands `ab` and `observed` read it: without a library, on any
machine that reaches the server."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

SAMPLE = re.compile(r"^smartspec_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


def fetch(url: str) -> str:
    """Return the metrics of a server. url: of it, or of its /metrics. ValueError says why there are
    none."""
    address = url if "://" in url else f"http://{url}"
    address = address.rstrip("/")
    address = address if address.endswith("/metrics") else f"{address.removesuffix('/v1')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10.0) as response:
            return response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{address} answers {error.code} {error.reason}: is this vLLM's server?"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{address} does not answer ({getattr(error, 'reason', error)})"
        ) from error


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of each sample of SmartSpec. Names have no `smartspec_`."""
    for name, labels, value in SAMPLE.findall(text):
        # a label's value is escaped as in JSON
        yield name, {key: json.loads(each) for key, each in LABEL.findall(labels)}, float(value)
