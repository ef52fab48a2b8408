"""Print what the package requires, one a line: python requirements.py [EXTRA...]."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
required = list(project["dependencies"])
for extra in sys.argv[1:]:
    required += project["optional-dependencies"][extra]
sys.stdout.write("\n".join(required) + "\n")
