"""The off switch counts cycles of all requests, and pressure has thresholds."""

import itertools

import pytest

from orchestrator.off_switch import NUM_BEFORE_OFF, OffSwitch
from orchestrator.pressure import Pressure, pressure
from outrider.policy import PressureLimits, Threshold


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


def test_once_off_probes_come_soon_then_seldom_and_a_gain_switches_on():
    switch = OffSwitch()
    for _ in range(NUM_BEFORE_OFF):
        switch.note(1.0)
    probes = [cycle for cycle in range(1, 1400) if switch.grants_probe()]
    distances = [b - a for a, b in itertools.pairwise([0, *probes])]
    assert distances == [*[40] * 8, 80, 160, 256, 256, 256]
    switch.note(1.0)
    assert switch.is_off
    switch.note(1.5)
    assert not switch.is_off
    switch.note(1.0)
    assert not switch.is_off, "it takes as many cycles as ever to switch off again"
    for _ in range(NUM_BEFORE_OFF):
        switch.note(1.0)
    assert switch.distance == 40, "what turned bad anew is tried soon again"


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
    limits = PressureLimits()
    values = {"queue_share": queue, "kv_usage": pool, "waiting_per_slot": waiting}
    assert pressure(limits, **values, rows_in_pass=1e6) is expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(63.9, Pressure.NONE), (64, Pressure.SHORTEN), (128, Pressure.STOP)],
)
def test_rows_of_a_pass_press_where_a_class_says_so(rows, expected):
    limits = PressureLimits(rows_in_pass=Threshold(shorten=64, stop=128))
    idle = {"queue_share": 0.0, "kv_usage": 0.0, "waiting_per_slot": 0.0}
    assert pressure(limits, **idle, rows_in_pass=rows) is expected
