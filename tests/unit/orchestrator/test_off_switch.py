"""The off switch counts cycles of all requests, and pressure has thresholds."""

import pytest

from orchestrator.off_switch import NUM_BEFORE_OFF, NUM_BETWEEN_PROBES, OffSwitch
from orchestrator.pressure import Pressure, pressure


def test_so_many_cycles_in_a_row_without_gain_switch_off():
    switch = OffSwitch()
    for _ in range(NUM_BEFORE_OFF - 1):
        switch.note(1.02)
    switch.note(1.03)
    for _ in range(NUM_BEFORE_OFF - 1):
        switch.note(0.2)
        assert not switch.is_off
    switch.note(1.029)
    assert switch.is_off


def test_once_off_every_256th_cycle_is_a_probe_and_a_gain_switches_on():
    switch = OffSwitch()
    for _ in range(NUM_BEFORE_OFF):
        switch.note(1.0)
    probes = [cycle for cycle in range(1, 1025) if switch.grants_probe()]
    assert probes == [NUM_BETWEEN_PROBES * k for k in (1, 2, 3, 4)]
    switch.note(1.0)
    assert switch.is_off
    switch.note(1.5)
    assert not switch.is_off
    switch.note(1.0)
    assert not switch.is_off, "it takes as many cycles as ever to switch off again"


@pytest.mark.parametrize(
    ("queue", "pool", "waiting", "expected"),
    [
        (0.5, 0.5, 0.5, Pressure.NONE),
        (0.6, 0.0, 0.0, Pressure.SHORTEN),
        (0.0, 0.9, 0.0, Pressure.SHORTEN),
        (0.0, 0.0, 1.0, Pressure.SHORTEN),
        (0.8, 0.0, 0.0, Pressure.STOP),
        (0.0, 0.97, 0.0, Pressure.STOP),
        (0.6, 0.0, 2.0, Pressure.STOP),
    ],
)
def test_the_highest_pressure_counts(queue, pool, waiting, expected):
    assert pressure(queue, pool, waiting) is expected
