"""Over-saturation from the requests in flight (MEASUREMENT C36; case C-25)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.stats.saturation import MIN_WINDOW_NS, over_saturated, saturation

CASE = json.loads((Path(__file__).parents[2] / "cases" / "loadgen" / "C-25.json").read_text())
SHOTS = [CASE, *CASE["variants"]]
BINS = [shot for shot in SHOTS if "in_flight_bins" in shot["inputs"]]


@pytest.mark.parametrize("shot", BINS, ids=lambda shot: shot["id"])
def test_sixty_bins_give_the_cases_verdict(shot: dict[str, Any]) -> None:
    """t of the halves, difference of the ends, spread around the line, and what follows of them."""
    bins = np.array(shot["inputs"]["in_flight_bins"], dtype=np.float64)
    found = over_saturated(bins, shot["inputs"]["rejected_or_expired_share"])
    values = {
        "over_saturated": found.over,
        "welch_t": found.welch_t,
        "ends_difference": found.ends_difference,
        "detrended_sd": found.detrended_sd,
    }
    for name, expected in shot["expect"].items():
        assert values[name] == pytest.approx(expected, abs=0.001), name


def test_queues_are_called_over_saturated_as_rarely_and_as_often_as_they_should() -> None:
    """C-25/error-rates: simulated M/M/1 queues at 80, 90 and 120 % of the service rate."""
    (shot,) = (shot for shot in SHOTS if shot["id"] == "C-25/error-rates")
    inputs, rng = shot["inputs"], np.random.default_rng(25)
    shares = {
        f"share_at_{at}": np.mean(
            [_mm1_over(rng, inputs["service_rate_per_s"], at) for _ in range(inputs["runs"])]
        )
        for at in inputs["utilisation"]
    }
    assert shares.keys() == shot["expect"].keys()
    for name, (low, high) in shot["expect"].items():
        assert low <= shares[name] <= high, name


def _mm1_over(rng: np.random.Generator, service_rate: float, utilisation: float) -> bool:
    n = round(120 * service_rate * utilisation * 1.3)
    arrivals = np.cumsum(rng.exponential(1 / (service_rate * utilisation), n))
    work = np.cumsum(rng.exponential(1 / service_rate, n))
    # departure k = max over j <= k of (arrival j + work j..k), all at once
    ends = work + np.maximum.accumulate(arrivals - np.concatenate([[0], work[:-1]]))
    spent = np.array([np.clip(t - arrivals, 0, ends - arrivals).sum() for t in np.linspace(60, 120, 61)])
    return bool(over_saturated(np.diff(spent), 0.0).over)


LIVES = pd.DataFrame({"start": [0.0, np.nan], "closed": [float(MIN_WINDOW_NS), np.nan]})


@pytest.mark.parametrize(
    ("length", "shed", "over"),
    [
        (MIN_WINDOW_NS - 1, 0.0, None),
        (MIN_WINDOW_NS - 1, 0.01, None),
        (MIN_WINDOW_NS - 1, 0.0101, True),
        (MIN_WINDOW_NS, 0.0, False),
        (MIN_WINDOW_NS, 0.01, False),
        (MIN_WINDOW_NS, 0.0101, True),
        (0, 0.0, None),
        (0, 1.0, True),
    ],
)
def test_the_limits_of_length_and_shed_share_are_exact(length: int, shed: float, over: bool | None) -> None:
    """Under 30 s growth has no verdict; exactly 1 % turned away is not over 1 %."""
    found = saturation(LIVES, (0, length), shed)
    assert found.over is over
    assert (found.reason is None) == (length >= MIN_WINDOW_NS)


def test_a_queue_that_empties_is_not_over_saturated() -> None:
    """Growth has a direction: the same line downwards, with and without noise, is none."""
    line = np.linspace(100, 5, 60)
    noise = np.random.default_rng(1).normal(0, 3, 60)
    assert over_saturated(line, 0.0).over is False
    assert over_saturated(line + noise, 0.0).over is False
    assert over_saturated((line + noise)[::-1], 0.0).over is True
