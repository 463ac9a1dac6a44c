import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import ClassConfig, EngineConfig
from engine.exposition import FleetMeters, exposition, merge
from engine.metrics import METRICS
from engine.telemetry import Meter

CONFIG = EngineConfig(
    model="m",
    workers=2,
    classes={"chat": ClassConfig(), "batch": ClassConfig()},
    slo_bounds={"ttft": (0.3,)},
)
TTFT = "headrace_engine_ttft_seconds"
FINISHED = "headrace_engine_finished_total"


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_names_follow_the_convention():
    """Every name has its part, counters end in _total, histograms of time in _seconds."""
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith("headrace_")
        assert ":" not in name
        assert name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.help


@pytest.mark.parametrize(
    "use",
    [
        lambda meter: meter.inc("headrace_engine_nothing_total"),
        lambda meter: meter.inc(FINISHED, reason="stop"),
        lambda meter: meter.inc(FINISHED, reason="stop", colour="red"),
        lambda meter: meter.observe(FINISHED, 1.0, reason="stop", class_="chat"),
        lambda meter: meter.inc("headrace_router_requests_total", class_="chat"),
    ],
)
def test_unknown_names_and_labels_are_loud(use):
    """A name or label that the table lacks, or that belongs to another part, is a KeyError."""
    with pytest.raises(KeyError):
        use(Meter(CONFIG, "engine"))


def test_counters_never_go_down():
    """A negative increment is refused (E55)."""
    with pytest.raises(ValueError, match="cannot go down"):
        Meter(CONFIG, "engine").inc("headrace_engine_generated_tokens_total", -1)


def test_known_label_sets_start_at_zero():
    """Series exist before their first event, classes and workers of the configuration included (O4)."""
    page = samples(
        exposition(
            CONFIG, {0: Meter(CONFIG, "engine").snapshot()}, Meter(CONFIG, "router", "fleet").snapshot()
        )
    )
    labels = (("class", "batch"), ("model", "m"), ("reason", "stop"), ("worker", "0"))
    assert page[(FINISHED, labels)] == 0
    state = (("model", "m"), ("state", "in_rotation"), ("worker", "1"))
    assert page[("headrace_router_worker_state", state)] == 0


def test_slo_bounds_are_bucket_bounds():
    """A value at the objective counts as within it, in the bucket of that very bound (O5)."""
    meter = Meter(CONFIG, "engine")
    for seconds in (0.2, 0.3, 0.3001, 5000.0):
        meter.observe(TTFT, seconds, class_="chat")
    page = samples(exposition(CONFIG, {0: meter.snapshot()}, {}))

    def bucket(le):
        return page[(TTFT + "_bucket", (("class", "chat"), ("le", le), ("model", "m"), ("worker", "0")))]

    assert bucket("0.3") == 2
    assert bucket("2560.0") == 3
    assert bucket("+Inf") == 4
    series = (("class", "chat"), ("model", "m"), ("worker", "0"))
    assert page[(TTFT + "_count", series)] == 4
    assert page[(TTFT + "_sum", series)] == pytest.approx(5000.8001)


def test_snapshot_travels_as_msgpack():
    """A snapshot is plain and does not change when the meter goes on."""
    meter = Meter(CONFIG, "engine")
    meter.observe(TTFT, 0.1, class_="chat")
    snapshot = meter.snapshot()
    meter.observe(TTFT, 0.1, class_="chat")
    assert msgpack.unpackb(msgpack.packb(snapshot)) == snapshot
    assert merge([snapshot, snapshot])[TTFT] == meter.snapshot()[TTFT]


def test_counters_survive_a_workers_death():
    """A dead incarnation's counters are added on, its gauges are gone, ready is 0 (O6)."""
    fleet = FleetMeters()
    for incarnation, tokens in (("a", 5), ("a", 7), ("b", 2)):
        meter = Meter(CONFIG, "engine")
        meter.inc("headrace_engine_generated_tokens_total", tokens)
        meter.set("headrace_engine_requests_running", 3)
        meter.set("headrace_engine_ready", 1)
        fleet.update(1, incarnation, meter.snapshot())
    alive = fleet.snapshots()[1]
    assert alive["headrace_engine_generated_tokens_total"] == [[[], 9]]
    assert alive["headrace_engine_requests_running"] == [[[], 3]]
    fleet.lost(1)
    fleet.lost(1)
    gone = fleet.snapshots()[1]
    assert gone["headrace_engine_generated_tokens_total"] == [[[], 9]]
    assert "headrace_engine_requests_running" not in gone
    assert gone["headrace_engine_ready"] == [[[], 0]]


def test_gauges_of_several_processes_become_one_as_declared():
    """Sums add, maxima win, the latest of the rest stands."""
    snapshots = []
    for running, ratio, epoch in ((3, 0.9, 5), (2, 0.4, 4)):
        meter = Meter(CONFIG, "engine")
        meter.set("headrace_engine_requests_running", running)
        meter.set("headrace_engine_kv_usage_ratio", ratio)
        meter.set("headrace_engine_cache_epoch", epoch)
        snapshots.append(meter.snapshot())
    merged = merge(snapshots)
    assert merged["headrace_engine_requests_running"] == [[[], 5]]
    assert merged["headrace_engine_kv_usage_ratio"] == [[[], 0.9]]
    assert merged["headrace_engine_cache_epoch"] == [[[], 4]]
