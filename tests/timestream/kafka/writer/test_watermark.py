"""A batch's watermark from the checkpoint of its query (semantics 29.2)."""

import json
from pathlib import Path

import pytest

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import CheckpointUnreadable, OptionError
from pyspark_timestream.kafka.writer.stream_writer import find_checkpoint, read_watermark


def plan(root: Path, batch: int, text: str) -> None:
    (root / "offsets").mkdir(exist_ok=True)
    (root / "offsets" / str(batch)).write_text(text)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_watermark_is_read_unless_1970_and_the_last_one_is_final(tmp_path: Path, version) -> None:
    final_ms = FINAL_US // 1000
    given = [0, 5, final_ms - 2, final_ms - 1, final_ms]
    for batch, watermark_ms in enumerate(given):
        plan(tmp_path, batch, f"{version}\n{json.dumps({'batchWatermarkMs': watermark_ms})}\n{{}}")
    found = [read_watermark(tmp_path, batch) for batch in range(len(given))]
    assert found == [None, 5_000, FINAL_US - 2_000, FINAL_US, FINAL_US]


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", "v1\n{}", "v1\n[]", 'v1\n{"batchWater'])
def test_a_batch_that_cannot_be_read_is_named(tmp_path: Path, text) -> None:
    plan(tmp_path, 3, text)
    with pytest.raises(CheckpointUnreadable, match=r"watermark of batch 3 .*offsets/3"):
        read_watermark(tmp_path, 3)
    with pytest.raises(CheckpointUnreadable, match="batch 4"):
        read_watermark(tmp_path, 4)


def test_a_checkpoint_elsewhere_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert find_checkpoint({"CheckpointLocation": f"file://{tmp_path}"}) == tmp_path
    for options in ({}, {"checkpointlocation": "s3a://bucket/c"}):
        with pytest.raises(OptionError, match="option 'checkpointLocation'"):
            find_checkpoint(options)
