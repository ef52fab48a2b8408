"""Patience follows what a verifier was seen to take, and is never 0."""

import math

import pytest
from pydantic import ValidationError

from orchestrator.settings import OrchestratorSettings
from orchestrator.step_time import MANY_TOKENS, StepTime


def test_patience_is_at_least_five_seconds_and_ten_times_the_expected_time():
    fast = StepTime(s_per_token=1e-4, s_per_pass=0.01)
    assert fast.timeout_s(1) == 5.0
    slow = StepTime(s_per_token=0.02, s_per_pass=0.1)
    assert slow.timeout_s(1000) == pytest.approx(10 * (0.1 + 1000 * 0.02))


def test_patience_grows_with_the_prompt():
    patience = [StepTime().timeout_s(n) for n in (1, 100, 1000, 10_000)]
    assert patience == sorted(patience)
    assert patience[-1] > 100 * patience[0]


@pytest.mark.parametrize("num_tokens", [1, MANY_TOKENS, MANY_TOKENS + 1, 4096])
def test_slower_steps_are_learned_faster_than_quick_ones(num_tokens):
    step_time = StepTime(s_per_token=0.01, s_per_pass=0.1)
    before = step_time.timeout_s(10_000)
    step_time.observe(num_tokens, 1000.0)
    slower = step_time.timeout_s(10_000)
    assert slower > before
    step_time.observe(num_tokens, 1e-4)
    assert before < step_time.timeout_s(10_000) < slower


def test_it_settles_at_what_is_observed():
    step_time = StepTime()
    for _ in range(200):
        step_time.observe(4, 2.0)
        step_time.observe(1000, 30.0)
    assert step_time.s_per_pass == pytest.approx(2.0)
    assert step_time.s_per_token == pytest.approx(0.03)


def test_patience_stays_above_zero_whatever_is_observed():
    step_time = StepTime()
    for _ in range(5000):
        step_time.observe(4, 0.0)
        step_time.observe(1000, 0.0)
    assert step_time.timeout_s(1) == 5.0


@pytest.mark.parametrize("name", ["min_timeout_s", "timeout_factor", "s_per_token", "s_per_pass"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_not_above_zero_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        StepTime(**{name: value})


@pytest.mark.parametrize("name", ["min_step_timeout_s", "step_timeout_factor"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_settings_refuse_them_too(name, value):
    with pytest.raises(ValidationError, match=name):
        OrchestratorSettings(verifier=("x:1",), **{name: value})
