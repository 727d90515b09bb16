"""The text format of Prometheus, as its documentation defines it."""

from __future__ import annotations

from regard.serving.prometheus_metrics import CounterMetric, HistogramMetric, gauge_lines


def test_counters_have_labels() -> None:
    counter = CounterMetric("texts_total", "Texts.", ["route", "status"])
    counter.add("/translate", "200", amount=3)
    counter.add('a"b\\c\n', "404")
    assert counter.lines() == [
        "# HELP texts_total Texts.",
        "# TYPE texts_total counter",
        'texts_total{route="/translate",status="200"} 3',
        'texts_total{route="a\\"b\\\\c\\n",status="404"} 1',
    ]
    assert CounterMetric("none_total", "Nothing yet.").lines()[-1] == "none_total 0"


def test_buckets_of_a_histogram_are_cumulative_and_closed_above() -> None:
    histogram = HistogramMetric("seconds", "Time.", (0.1, 1.0))
    for value in (0.1, 0.5, 3.0):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'seconds_bucket{le="0.1"} 1',
        'seconds_bucket{le="1.0"} 2',
        'seconds_bucket{le="+Inf"} 3',
        "seconds_sum 3.600000",
        "seconds_count 3",
    ]


def test_gauges() -> None:
    assert gauge_lines("queue", "Waiting.", 2) == ["# HELP queue Waiting.", "# TYPE queue gauge", "queue 2"]
