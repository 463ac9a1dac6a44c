"""Reading a metrics page: the same as the reference parser, and honest about what it cannot read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.clock import run_virtual
from loadgen.scrape import Scraper, samples

PAGE = """# HELP a_total Things.
# TYPE a_total counter
a_total{kind="x"} 3.0
b_seconds_bucket{le="0.5"} 1
b_seconds_bucket{le="+Inf"} 2
b_seconds_sum 0.7
b_seconds_count 2 1700000000000
"""


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5), st.floats(allow_nan=False))
def test_pages_read_as_by_the_reference_parser(values, number):
    """Whatever the label values, names, labels and numbers equal those of prometheus_client's parser."""
    registry = CollectorRegistry()
    gauge = Gauge("g", "A gauge.", ["one", "two"], registry=registry)
    for value in values:
        gauge.labels(value, value[::-1]).set(number)
    Counter("c", "A counter.", registry=registry).inc()
    Histogram("h", "A histogram.", registry=registry).observe(0.1)
    page = generate_latest(registry).decode()
    want = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    got = [(row.name, json.loads(row.labels), row.value) for row in samples(page, 0, "t")]
    assert got == want


def test_buckets_can_be_left_out():
    """Without buckets, sums and counts still stand."""
    assert [row.name for row in samples(PAGE, 5, "t", buckets=False)] == [
        "a_total",
        "b_seconds_sum",
        "b_seconds_count",
    ]


@pytest.mark.parametrize("line", ["a{x=1} 2", 'a{x="1" 2', "{} 3", "a b c", "a{y} 1"])
def test_a_line_that_is_no_sample_is_named(line):
    """A page of something else is an error, not an empty result."""
    with pytest.raises(ValueError, match=r"no sample|no labels|could not convert"):
        samples(line + "\n", 0, "t")


def test_a_failed_scrape_leaves_a_gap_and_its_reason():
    """What could not be read is counted with its reason; nothing is made up in its place."""

    async def main(clock):
        pages = [PAGE, OSError("refused"), "<html>", PAGE]

        async def fetch():
            page = pages.pop(0)
            if isinstance(page, Exception):
                raise page
            return page

        scraper = Scraper(fetch, clock)
        for _ in range(4):
            await scraper.once()
        return scraper

    scraper = run_virtual(main)
    assert [row.t for row in scraper.since(-7)] == [7] * 2 * 5
    assert sorted(scraper.failures) == ["OSError: refused", "ValueError: no sample of a metric: '<html>'"]
