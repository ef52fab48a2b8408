"""Imports run one way: __main__ -> servicer -> domain -> outrider, and torch stays with workers."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("drafter_svc", "verifier_svc", "orchestrator", "openai_svc")
WORKER_ONLY = {"torch", "transformers", "safetensors", "accelerate", "gguf"}

# Files of a service that may know gRPC or the stubs: they translate or hold a connection, and the
# domain reaches them only through its own words.
TRANSPORT = {
    "drafter_svc/__main__.py",
    "drafter_svc/servicer.py",
    "openai_svc/__main__.py",
    "openai_svc/calls.py",
    "openai_svc/chat_reply.py",
    "openai_svc/completion_reply.py",
    "openai_svc/exchange.py",
    "openai_svc/logprobs.py",
    "openai_svc/reply.py",
    "openai_svc/servicer.py",
    "openai_svc/vocabulary.py",
    "orchestrator/__main__.py",
    "orchestrator/draft_lease.py",
    "orchestrator/receipt_message.py",
    "orchestrator/servicer.py",
    "orchestrator/supervision.py",
    "orchestrator/verify_lease.py",
    "orchestrator/worker.py",
    "orchestrator/workers.py",
    "verifier_svc/__main__.py",
    "verifier_svc/servicer.py",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its name, stubs excepted."""
    return {
        module_name(path): path
        for package in ("outrider", *SERVICES)
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(ROOT / "outrider" / "v1")
    }


@cache
def imports(path: Path) -> frozenset[str]:
    """Names that a file imports anywhere, inside functions too; `from a import b` gives a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def loaded_with(name: str) -> set[str]:
    """Modules of ours that importing this name runs: itself or its home, and all parents."""
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)} & modules().keys()


def reachable(start: set[str]) -> set[str]:
    seen: set[str] = set()
    frontier = set(start)
    while frontier:
        module = frontier.pop()
        seen.add(module)
        for name in imports(modules()[module]):
            frontier |= loaded_with(name) - seen
    return seen


def files_of(package: str) -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for path in modules().values()
        if path.is_relative_to(ROOT / package)
    ]


@pytest.mark.parametrize("package", ["outrider", *SERVICES])
def test_the_package_is_there(package):
    assert files_of(package)


@pytest.mark.parametrize("service", SERVICES)
def test_services_never_import_each_other(service):
    others = set(SERVICES) - {service}
    assert not [file for file in files_of(service) if packages(ROOT / file) & others]


def test_the_shared_package_imports_no_service():
    assert not [file for file in files_of("outrider") if packages(ROOT / file) & set(SERVICES)]


@pytest.mark.parametrize("service", ["orchestrator", "openai_svc"])
def test_what_needs_no_model_reaches_no_model_library(service):
    start = {module_name(ROOT / file) for file in files_of(service)}
    guilty = {
        module: packages(modules()[module]) & WORKER_ONLY
        for module in reachable(start)
        if packages(modules()[module]) & WORKER_ONLY
    }
    assert not guilty


@pytest.mark.parametrize("service", ["orchestrator", "openai_svc"])
def test_what_needs_no_model_imports_with_model_libraries_hidden(service):
    """The same as a fact: a third party's import could bring torch in as well."""
    names = sorted(module_name(ROOT / file) for file in files_of(service))
    names.remove(f"{service}.__main__")
    hidden = f"import sys; sys.modules.update(dict.fromkeys({sorted(WORKER_ONLY)!r}));"
    command = hidden + "".join(f"import {name};" for name in names)
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_only_the_border_of_a_service_knows_grpc_and_stubs(service):
    knowing = {
        file
        for file in files_of(service)
        if "grpc" in packages(ROOT / file)
        or any(name.startswith("outrider.v1") for name in imports(ROOT / file))
    }
    assert knowing <= TRANSPORT


@pytest.mark.parametrize("service", SERVICES)
def test_the_domain_imports_neither_servicer_nor_main(service):
    domain = set(files_of(service)) - {f"{service}/__main__.py", f"{service}/servicer.py"}
    upward = {f"{service}.servicer", f"{service}.__main__"}
    guilty = {
        file
        for file in domain
        for name in imports(ROOT / file)
        if any(name == module or name.startswith(f"{module}.") for module in upward)
    }
    assert not guilty
