"""Limits and intervals of a store, set so that a few events reach them."""

from typing import Any, Final

import pytest

_PLACES: Final = {
    "range_bytes": "pyspark_tseries.maintain.compactor.MAX_RANGE_BYTES",
    "held_bytes": "pyspark_tseries.maintain.compactor.MAX_HELD_BYTES",
    "small_file_bytes": "pyspark_tseries.maintain.compactor.SMALL_FILE_BYTES",
    "small_files": "pyspark_tseries.maintain.compactor.SMALL_FILES_AT_ONCE",
    "kept_small_files": "pyspark_tseries.maintain.background.MAX_KEPT_SMALL_FILES",
    "log_versions": "pyspark_tseries.maintain.background.MIN_LOG_VERSIONS_KEPT",
    "encoded_texts": "pyspark_tseries.maintain.compactor.MAX_ENCODED_TEXTS",
    "groups_to_merge": "pyspark_tseries.maintain.compactor.MIN_GROUPS_TO_MERGE",
    "head_changes": "pyspark_tseries.model.series_index.MAX_INDEX_CHANGES",
    "merged_rows": "pyspark_tseries.model.series_index.MAX_MERGED_ROWS",
    "index_rows": "pyspark_tseries.storage.snapshot.SMALL_INDEX_ROWS",
    "whole_read_bytes": "pyspark_tseries.storage.snapshot.MAX_WHOLE_READ_BYTES",
    "part_rows": "pyspark_tseries.write.task_output.MAX_BATCH_ROWS",
    "merged_chunks": "pyspark_tseries.write.task_output.MAX_MERGED_CHUNKS",
    "group_rows": "pyspark_tseries.write.numbering.ROWS_PER_GROUP",
    "piece_rows": "pyspark_tseries.storage.row_reader.ROWS_PER_PIECE",
    "jobs_per_thread": "pyspark_tseries.storage.row_reader.JOBS_PER_THREAD",
    "cpus": "pyspark_tseries.storage.row_reader.CPU_COUNT",
    "server_copy_bytes": "pyspark_tseries.storage.location.MAX_SERVER_COPY_BYTES",
    "publish_us": "pyspark_tseries.spark.readers.MAX_PUBLISH_US",
    "group_bytes": "pyspark_tseries.read.downsample.MAX_BYTES_AT_ONCE",
    "partition_bytes": "pyspark_tseries.spark.readers.MAX_BYTES_PER_PARTITION",
    "task_rows": "pyspark_tseries.read.subscription.MAX_ROWS_PER_TASK",
    "batch_rows": "pyspark_tseries.read.delivery.MAX_ROWS_PER_BATCH",
    "commits_per_file": "pyspark_tseries.store.commit_history.COMMITS_PER_FILE",
    "fresh_files_s": "pyspark_tseries.store.log_check.FRESH_FILES_S",
    "silence_s": "pyspark_tseries.storage.location.MAX_SILENCE_S",
    "checkpoint_interval": "pyspark_tseries.model.properties.LOCAL_CHECKPOINT_INTERVAL",
    "idle_us": "pyspark_tseries.model.commits.MAX_IDLE_US",
    "credible_us": "pyspark_tseries.model.commits._MIN_CREDIBLE_US",
}


def set_limits(patch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Set limits until `patch` is undone; their names here stay if constants are renamed."""
    for name, value in limits.items():
        patch.setattr(_PLACES[name], value)
