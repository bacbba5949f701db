"""The Prometheus page: text exposition format 0.0.4, from samples."""

from collections.abc import Iterable
from typing import Final

from pyspark_timestream.metrics.catalogue import METRICS, Metric
from pyspark_timestream.metrics.samples import Sample

__all__ = ["CONTENT_TYPE", "render_page"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render_page(samples: Iterable[Sample]) -> str:
    """The page with `samples`, grouped by metric; a metric without samples is left out."""
    groups: dict[Metric, list[Sample]] = {metric: [] for metric in METRICS}
    for sample in samples:
        groups[sample.metric].append(sample)
    lines = []
    for metric, found in groups.items():
        if not found:
            continue
        name = metric.prometheus_name
        lines += [
            f"# HELP {name} {_escape(metric.description)}",
            f"# TYPE {name} {metric.instrument}",
            *(f"{name}{_render_labels(sample)} {sample.value!r}" for sample in found),
        ]
    return "".join(f"{line}\n" for line in lines)


def _render_labels(sample: Sample) -> str:
    labels = ",".join(
        f'{name.replace(".", "_")}="{_escape_label(text)}"' for name, text in sample.attributes
    )
    return f"{{{labels}}}" if labels else ""


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', r"\"")


def _escape(text: str) -> str:
    """`text` with the escapes of the format; half a surrogate pair, which UTF-8 has not, is `?`."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole.replace("\\", r"\\").replace("\n", r"\n")
