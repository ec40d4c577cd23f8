"""fleet_metrics: what the replicas' /metrics show, as one text with a label that says whose it is.

Families stay together, as the Prometheus text format wants it, and are described once.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAMPLE = re.compile(r"([^\s{]+)(?:\{(.*)\})? ([^{}]+)")
_LABEL = "replica"


def merge_metrics(texts: Iterable[tuple[str, str]]) -> str:
    """Put the metrics of replicas together.

    Args:
        texts: The name of each replica, and its metrics in Prometheus' text format.
    """
    descriptions: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                kind, name = line.split(maxsplit=3)[1:3]
                if kind == "HELP":
                    family = name
                lines = descriptions.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, replica))
    return "".join(
        f"{line}\n"
        for family, lines in descriptions.items()
        for line in (*lines, *samples.get(family, ()))
    )


def _labelled(line: str, replica: str) -> str:
    """A sample with one label more."""
    match = _SAMPLE.fullmatch(line)
    assert match is not None, f"no sample: {line[:100]}"
    name, labels, value = match.groups()
    more = f'{_LABEL}="{replica}"'
    return f"{name}{{{labels},{more}}} {value}" if labels else f"{name}{{{more}}} {value}"
