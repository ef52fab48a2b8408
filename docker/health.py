"""Exit with 0 if the service in this container serves, else with 1 and the reason.

Usage: python health.py VARIABLE [http], the environment variable that holds the service's port, and
how it is asked where that is not gRPC.
"""

import os
import sys
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 5.0


def main() -> str | None:
    """Return why the service does not serve, or None."""
    address = f"127.0.0.1:{os.environ[sys.argv[1]]}"
    return _over_http(address) if sys.argv[2:] == ["http"] else _over_grpc(address)


def _over_http(address: str) -> str | None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(f"http://{address}/health", timeout=TIMEOUT_S)
    except OSError as error:
        return str(error)
    return None


def _over_grpc(address: str) -> str | None:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    serves = answer.status == health_pb2.HealthCheckResponse.SERVING
    return None if serves else "NOT_SERVING"


if __name__ == "__main__":
    raise SystemExit(main())
