"""When others need the verifier more than long drafts do."""

import enum

# A step that comes during a pass waits for the next one. Where none waits longer than that, at
# most half of the leases wait at the end of a pass, averaged over verdicts.
QUEUE_HIGH, QUEUE_FULL = 0.6, 0.8  # share of the verifier's leases whose step waits
POOL_HIGH, POOL_FULL = 0.9, 0.97  # share of KV blocks that leases hold
WAITING_HIGH, WAITING_FULL = 1.0, 2.0  # requests that wait for a slot, per slot


class Pressure(enum.IntEnum):
    """What it means for draft lengths."""

    NONE = 0
    SHORTEN = 1  # half as long
    STOP = 2


def pressure(queue_share: float, pool_usage: float, num_waiting_per_slot: float) -> Pressure:
    """Return the highest of the three pressures."""

    if queue_share < QUEUE_HIGH and pool_usage < POOL_HIGH and num_waiting_per_slot < WAITING_HIGH:
        return Pressure.NONE

    def level(value: float, high: float, full: float) -> Pressure:
        return Pressure((value >= high) + (value >= full))

    return max(
        level(queue_share, QUEUE_HIGH, QUEUE_FULL),
        level(pool_usage, POOL_HIGH, POOL_FULL),
        level(num_waiting_per_slot, WAITING_HIGH, WAITING_FULL),
    )
