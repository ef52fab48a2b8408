"""Policies for a mixed load, as files."""

import io
from collections.abc import Collection, Sequence

from ruamel.yaml import YAML

from bench.mixed.classes import LANGUAGE, WORKLOAD, LoadClass


def policy_text(
    version: str, classes: Sequence[LoadClass], enabled: Collection[str], *, lookup: bool
) -> str:
    """Return a policy in which drafts work for the classes of these names."""
    policy = {
        "version": version,
        "metadata": [WORKLOAD, LANGUAGE],
        "classes": [
            {
                "name": each.name,
                "when": {"metadata": {WORKLOAD: each.name}},
                "speculation": "on" if each.name in enabled else "off",
                "sources": list(each.sources),
                "lookup": lookup,
            }
            for each in classes
        ],
    }
    written = io.StringIO()
    YAML().dump(policy, written)
    return written.getvalue()
