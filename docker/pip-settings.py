#!/usr/bin/env python3
"""Write the settings that `pip config list` prints into FOLDER/etc/pip.conf, wheel folders beside.

Usage: python3 -m pip config list | pip-settings.py FOLDER. Only what says where packages come from
is taken. Folders that `find-links` names are copied; a whole index on disk would be too much.
"""

import ast
import shutil
import sys
from pathlib import Path

WANTED = ("cert", "index-url", "extra-index-url", "find-links", "trusted-host", "timeout")


def main() -> None:
    """Read the settings of all levels, the last level wins."""
    target = Path(sys.argv[1])
    settings: dict[str, str] = {}
    for line in sys.stdin:
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in WANTED:
            settings[name] = str(ast.literal_eval(value.strip()))
    if "extra-index-url" in settings:
        urls = settings["extra-index-url"].split()
        settings["extra-index-url"] = " ".join(url for url in urls if "file:" not in url)
    for folder in map(Path, settings.get("find-links", "").split()):
        if folder.is_dir():
            shutil.copytree(folder, target / folder.relative_to("/"))
    path = target / "etc/pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {value}" for name, value in settings.items() if value]
    path.write_text("\n".join(["[global]", *lines, ""]))


if __name__ == "__main__":
    main()
