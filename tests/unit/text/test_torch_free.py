"""What the orchestrator imports works where neither torch nor transformers is installed."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

BLOCKED = ("torch", "transformers", "safetensors", "gguf")
SCRIPT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"{{name}} is hidden")
sys.meta_path.insert(0, Blocker())
import {module}
assert not set({blocked}) & set(sys.modules)
"""


@pytest.mark.parametrize(
    "module",
    ["outrider.identity", "outrider.text", "outrider.wire", "outrider.lookup", "outrider.sampling"],
)
def test_imports_without_torch_and_transformers(module: str) -> None:
    if find_spec(module) is None:
        pytest.fail(f"{module} is missing")
    script = SCRIPT.format(blocked=BLOCKED, module=module)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=50
    )
    assert result.returncode == 0, result.stderr
