"""A batch's watermark from the checkpoint of its query (semantics 29.2)."""

from pathlib import Path

import pytest

from pyspark_timestream.errors import CheckpointUnreadable, OptionError
from pyspark_timestream.kafka.writer.stream_writer import read_batch_watermark, require_checkpoint


def plan(root: Path, batch: int, text: str) -> None:
    (root / "offsets").mkdir(exist_ok=True)
    (root / "offsets" / str(batch)).write_text(text)


@pytest.mark.parametrize("text", ["", "v1\n{", "v1\n{}"])
def test_a_batch_that_cannot_be_read_is_named(tmp_path: Path, text) -> None:
    plan(tmp_path, 3, text)
    with pytest.raises(CheckpointUnreadable, match=r"watermark of batch 3 .*offsets/3"):
        read_batch_watermark(tmp_path, 3)
    with pytest.raises(CheckpointUnreadable, match="batch 4"):
        read_batch_watermark(tmp_path, 4)


def test_a_checkpoint_elsewhere_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert require_checkpoint({"CheckpointLocation": f"file://{tmp_path}"}) == tmp_path
    for options in ({}, {"checkpointlocation": "s3a://bucket/c"}):
        with pytest.raises(OptionError, match="option 'checkpointLocation'"):
            require_checkpoint(options)
