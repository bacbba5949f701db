"""A stopped query's checkpoint explains itself, and what is not a checkpoint is refused clearly."""

import json
import subprocess
import sys

import pytest
from timestream.histories import history, share, state

from pyspark_timestream.__main__ import main
from pyspark_timestream.commands.explanation import explain_checkpoint
from pyspark_timestream.errors import CheckpointMismatch, CheckpointUnreadable
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind


def checkpoint(root, *batches, sources=(), committed=True):
    """A checkpoint with this stream as its first source, and then `sources` as JSON text."""
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True)
    for number, moment in enumerate(history(*batches)):
        note = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": moment.planned_us // 1000})
        lines = ["v1", note, json.dumps(moment.offset.to_json()), *sources]
        (root / "offsets" / str(number)).write_text("\n".join(lines))
        (root / "offsets" / f".{number}.crc").write_bytes(b"\x00\xff")
        if committed:
            (root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return root


HELD = [share(state(5)), share(state(1))]


@pytest.fixture
def held(tmp_path):
    """A checkpoint of two batches, in which partition 1 holds the CTI back."""
    return checkpoint(tmp_path / "a b", HELD, HELD)


def kinds(explanation):
    return [diagnosis.kind for stream in explanation.streams for diagnosis in stream.diagnoses]


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "{}/"])
def test_a_checkpoint_is_explained_by_path_or_uri(held, form):
    place = str(held) if form.startswith("{") else str(held).replace(" ", "%20")
    explanation = explain_checkpoint(form.format(place))
    assert kinds(explanation) == [Kind.IDLE_PARTITION]
    assert explanation.notes == ()
    assert f"Checkpoint {held}" in str(explanation)


def test_a_checkpoint_says_that_it_does_not_know_the_lag_and_how_to_ask_for_it(tmp_path):
    """Many records may wait by now: nobody has asked a broker."""
    root = checkpoint(tmp_path / "c", [share(state(5))])
    entry = root / "offsets" / "0"
    version, note, offset = entry.read_text().splitlines()
    known = {**json.loads(offset), "unpinned": {"group": "timestream-f00d"}}
    entry.write_text("\n".join([version, note, json.dumps(known)]))
    explanation = explain_checkpoint(str(root))
    assert explanation.streams[0].partitions[0].lag is None
    assert "everything is read" not in str(explanation)
    assert "kafka-consumer-groups.sh --describe --group timestream-f00d" in explanation.notes[0]


def test_batches_are_in_the_order_of_numbers_and_not_of_names(tmp_path):
    root = checkpoint(tmp_path / "c", *[[share(state(n))] for n in range(12)])
    (stream,) = explain_checkpoint(str(root)).streams
    assert stream.batch == 11


def test_a_half_written_file_is_passed_over_with_a_note(held):
    whole = (held / "offsets" / "1").read_text()
    (held / "offsets" / "2").write_text(whole[: len(whole) // 2])
    (held / "offsets" / ".3.tmp").write_text("v1")
    (held / "offsets" / "4").write_bytes(b"\xff\xfe")
    (held / "offsets" / "5").mkdir()
    explanation = explain_checkpoint(str(held))
    assert kinds(explanation) == [Kind.IDLE_PARTITION]
    assert [note.split(" was ")[0] for note in explanation.notes] == [
        "offsets/2", "offsets/4", "offsets/5",
    ]  # fmt: skip


def test_a_batch_that_was_not_finished_is_noted(tmp_path):
    root = checkpoint(tmp_path / "c", HELD, committed=False)
    assert "batch 0 was planned and not finished" in str(explain_checkpoint(str(root)))


def test_an_abandoned_batch_is_noted_and_is_not_the_newest(tmp_path):
    root = checkpoint(tmp_path / "c", *[[share(state(n))] for n in range(3)])
    (root / "commits" / "2").unlink()
    for log, text in (("offsets", (root / "offsets" / "1").read_text()), ("commits", "v1")):
        (root / log / "3").write_text(text)
    explanation = explain_checkpoint(str(root))
    assert [stream.batch for stream in explanation.streams] == [1]
    assert explanation.notes == (
        "batch 2 was never finished: a forced repartition of the state skipped it",
    )


def test_other_sources_are_skipped(tmp_path):
    (moment,) = history(HELD)
    second = json.dumps({**moment.offset.to_json(), "stream": "other"})
    sources = ("-", '{"topic":{"0":5}}', "17", second)
    explanation = explain_checkpoint(str(checkpoint(tmp_path / "c", HELD, sources=sources)))
    assert kinds(explanation) == [Kind.IDLE_PARTITION] * 2


def test_a_checkpoint_of_other_sources_says_that_none_is_ours(tmp_path):
    root = checkpoint(tmp_path / "c", HELD)
    (root / "offsets" / "0").write_text('v1\n{"batchTimestampMs":1}\n{"version":1}')
    explanation = explain_checkpoint(str(root))
    assert explanation.streams == ()
    assert "none of its sources" in str(explanation)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: None, "no directory 'offsets'"),
        (lambda root: (root / "offsets").mkdir(parents=True), "planned no batch yet"),
        (lambda root: (root / "offsets" / "0").mkdir(parents=True), "offsets/0 was passed over"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_what_to_pass(tmp_path, make, said):
    make(tmp_path / "c")
    with pytest.raises(CheckpointUnreadable, match=f"{said}.*checkpointLocation"):
        explain_checkpoint(str(tmp_path / "c"))


def test_a_checkpoint_elsewhere_is_refused_with_what_to_copy():
    with pytest.raises(CheckpointUnreadable, match=r"'s3a://bucket/c' is not on this machine"):
        explain_checkpoint("s3a://bucket/c")


def test_a_newer_checkpoint_is_refused_by_name(held):
    file = held / "offsets" / "1"
    file.write_text(file.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(CheckpointMismatch, match="format version 99"):
        explain_checkpoint(str(held))


def test_the_command_prints_the_explanation_or_the_error(held, tmp_path, capsys):
    assert main(["explain", "--checkpoint", str(held)]) == 0
    assert "=> an idle partition: topic 'topic' partition 1" in capsys.readouterr().out
    assert main(["explain", "--checkpoint", str(tmp_path / "none")]) == 1
    assert "no directory 'offsets'" in capsys.readouterr().err


def test_the_command_needs_neither_spark_nor_a_client(held):
    code = "import sys; sys.modules['pyspark'] = sys.modules['confluent_kafka'] = None; "
    code += "from pyspark_timestream.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "explain", "--checkpoint", str(held)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert "an idle partition" in done.stdout
