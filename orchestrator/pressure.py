"""When others need the verifier more than long drafts do."""

import enum

from outrider.policy import PressureLimits, Threshold


class Pressure(enum.IntEnum):
    """What it means for draft lengths."""

    NONE = 0
    SHORTEN = 1  # half as long
    STOP = 2


def pressure(
    limits: PressureLimits,
    *,
    queue_share: float,
    kv_usage: float,
    waiting_per_slot: float,
    rows_in_pass: float,
) -> Pressure:
    """Return the highest of the pressures; what the values are ``PressureLimits`` says."""

    def level(threshold: Threshold, value: float) -> Pressure:
        return Pressure((value >= threshold.shorten) + (value >= threshold.stop))

    rows = limits.rows_in_pass
    return max(
        level(limits.queue_share, queue_share),
        level(limits.kv_usage, kv_usage),
        level(limits.waiting_per_slot, waiting_per_slot),
        Pressure.NONE if rows is None else level(rows, rows_in_pass),
    )
