"""The model of many devices against enumerations."""

import pytest
from benchmarks.cost_model import METHODS, Counts, Machine, ratio
from benchmarks.growth import BUCKET, Link, divided, parts, ring, scored

COUNTS = Counts(operations=6e9, inputs=1e6, outputs=2e6, channels=1e6, weights=5e5)
MACHINE = Machine("a", 1e11, 2e10, 4e-9)


def _simulated(size, devices, link):
    """A ring: every device sends one of its chunks to the next one, first to add them up, then to copy the sums."""
    holds = [[{d} for _ in range(devices)] for d in range(devices)]  # whose gradients are in the chunk
    seconds = 0.0
    for turn in range(2 * (devices - 1)):
        sent = [(d, (d - turn) % devices) for d in range(devices)]
        moved = [(chunk, set(holds[d][chunk])) for d, chunk in sent]
        for d, (chunk, owners) in enumerate(moved):
            holds[(d + 1) % devices][chunk] |= owners
        seconds += link.latency + size / devices / link.bandwidth
    assert all(chunk == set(range(devices)) for device in holds for chunk in device)
    return seconds


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7])
def test_a_ring(devices):
    link = Link("a", 1e9, 1e-4)
    assert ring(1e6, devices, link) == pytest.approx(_simulated(1e6, devices, link), rel=1e-12, abs=1e-15)
    buckets = ring(3.5 * BUCKET, devices, link)
    assert buckets == pytest.approx(3 * ring(BUCKET, devices, link) + ring(BUCKET / 2, devices, link), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", METHODS)
def test_parts_of_a_step(name):
    extra, plain = METHODS[name], 0.1
    rows, weights = parts(COUNTS, extra, MACHINE, plain, 1)
    assert rows + weights == pytest.approx(plain * ratio(COUNTS, extra, MACHINE, plain))
    for devices in (2, 8):
        assert parts(COUNTS, extra, MACHINE, plain, devices) == pytest.approx((rows / devices, weights))
    assert divided(COUNTS, 4).weights == COUNTS.weights


def test_shared_noise_is_drawn_for_every_weight_on_every_device():
    extra, noiseless = METHODS["MeanField, shared noise"], Machine("b", 1e11, 2e10, 0.0)
    drawn = parts(COUNTS, extra, MACHINE, 0.1, 64)[1] - parts(COUNTS, extra, noiseless, 0.1, 64)[1]
    assert drawn == pytest.approx(COUNTS.weights * MACHINE.draw)


def test_scoring():
    table = scored({"rows_per_second": 1e5, "start": 10.0})["1000"]
    assert table["core-hours"] == pytest.approx(1000 * (10 + 10) / 3600, rel=0.01)
    assert table["hours, 1,024 cores"] == pytest.approx(20 / 3600, rel=0.01)
    assert table["hours, 32 cores"] == pytest.approx(32 * 20 / 3600, rel=0.01)
