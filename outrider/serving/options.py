"""gRPC options of both ends of every hop; they only work as a pair, so they stand side by side."""

import json

Option = tuple[str, int | str]

# Eight float32 rows of a 151,936-token vocabulary are 4.9 MB; gRPC's own limit is 4 MiB.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

# A peer that vanished without closing its connection is noticed after time + timeout.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000

_MESSAGE_SIZES: tuple[Option, ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
_KEEPALIVE: tuple[Option, ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # A ping has a limit of its own, a minute by default, and the longer of the two counts.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings are sent however long no data flows, such as during the prefill of a long prompt.
    ("grpc.http2.max_pings_without_data", 0),
)

# Every method of a worker's unary surface only reads.
_RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "outrider.v1.WorkerService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def server_options() -> list[Option]:
    """Options of a server: bounded messages, and clients may ping as often as they like."""
    return [
        *_MESSAGE_SIZES,
        *_KEEPALIVE,
        # By default a client that pings more than once in five minutes without data is sent away
        # with GOAWAY "too many pings".
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Two servers on one port would share its connections at random instead of one failing.
        ("grpc.so_reuseport", 0),
    ]


def channel_options() -> list[Option]:
    """Options of a channel: bounded messages, keepalive, retries of reads, quick reconnects."""
    return [
        *_MESSAGE_SIZES,
        *_KEEPALIVE,
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRIES)),
        # A worker that comes back is found within a second, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Services are peers in one network; a proxy from the environment is for the outside.
        ("grpc.enable_http_proxy", 0),
    ]
