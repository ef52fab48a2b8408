"""Generates the gRPC stubs from the protos, for every kind of build and for `make protos`."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("outrider/v1")
INIT = '"""Generated from protos/outrider/v1; do not edit."""\n'


def generate_stubs(root: Path) -> None:
    """Write the messages, their typing stubs and the services of every proto into outrider/v1.

    The proto folder is named like the Python package, so protoc's own imports already fit.

    Raises: RuntimeError if protoc refuses a file; it prints why.
    """
    target = root / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    protos = sorted((root / "protos" / PACKAGE).glob("*.proto"))
    known = {f"{proto.stem}_pb2" for proto in protos}
    for stub in target.glob("*_pb2*.py*"):
        # A proto that was renamed or removed must not leave importable stubs behind.
        if stub.name.split(".")[0].removesuffix("_grpc") not in known:
            stub.unlink()
    arguments = [
        "protoc",
        f"-I{root / 'protos'}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={root}",
        f"--pyi_out={root}",
        f"--grpc_python_out={root}",
        *map(str, protos),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc could not generate {PACKAGE}")
    (target / "__init__.py").write_text(INIT)


class StubsHook(BuildHookInterface):
    """Runs before wheels, source archives and editable installs are put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate_stubs(Path(self.root))


if __name__ == "__main__":
    generate_stubs(Path(__file__).resolve().parent)
