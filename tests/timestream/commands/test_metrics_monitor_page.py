"""The dashboard and the alerts of docs/how-to/monitor.md ask for metrics that exist."""

import json
import re

import pytest
import yaml
from documents import ROOT, table
from generate import generate

from pyspark_timestream.commands.metrics import METRICS

PAGE = "docs/how-to/monitor.md"
DASHBOARD = json.loads((ROOT / "docs/how-to/timestream-dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "docs/how-to/timestream-alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
LABELS = {
    metric.prometheus_name: {name.replace(".", "_") for name in metric.attributes}
    for metric in METRICS
}
WORDS = {"and", "by", "increase", "on", "rate", "sum", "unless", "for"}


def names_in(expression):
    """The identifiers of a query that are not words of PromQL, without texts and variables."""
    plain = re.sub(r'"[^"]*"|\[[^]]*\]', "", expression)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", plain)) - WORDS


def check_query(expression):
    metrics = {name for name in names_in(expression) if name.startswith(("timestream", "tseries"))}
    assert metrics
    assert metrics <= LABELS.keys(), expression
    known = set.union(*(LABELS[metric] for metric in metrics))
    assert names_in(expression) - metrics <= known, expression
    # Only counters have a rate, and only the growth of a counter says anything.
    grown = set(re.findall(r"(?:rate|increase)\((\w+)", expression))
    assert grown == {name for name in metrics if name.endswith("_total")} or not grown, expression
    assert expression.count("(") == expression.count(")")


def shown_labels(text):
    return set(re.findall(r"\$labels\.(\w+)", text)) | set(re.findall(r"\{\{(\w+)\}\}", text))


@pytest.mark.parametrize("expression", QUERIES)
def test_dashboard_asks_for_metrics_and_labels_that_exist(expression):
    check_query(expression)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_asks_for_metrics_and_labels_that_exist(rule):
    check_query(rule["expr"])
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
    told = shown_labels(rule["annotations"]["description"])
    assert told <= set().union(*(LABELS[name] for name in LABELS if name in rule["expr"]))
    grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
    assert not grouped or told <= set(grouped[1].split(", "))


def test_legends_of_the_dashboard_show_labels_that_exist():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (metric,) = {name for name in names_in(target["expr"]) if name in LABELS}
            assert shown_labels(target["legendFormat"]) <= LABELS[metric]


def test_panels_of_the_dashboard_do_not_overlap():
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert all(x < 24 for x, _ in taken)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_page_lists_every_metric_and_every_alert():
    page = generate((ROOT / PAGE).read_text())
    for metric in METRICS:
        assert f"| `{metric.prometheus_name}` | `{metric.name}` | `{metric.unit}` |" in page
    listed = {row[0].strip("`"): row[1] for row in table(PAGE, "alerts")}
    assert listed == {rule["alert"]: rule["annotations"]["summary"] for rule in RULES}
