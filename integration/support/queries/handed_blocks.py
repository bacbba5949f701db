"""The blocks of rows that Spark got together with partitions (semantics 8.9)."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def block_manager(spark: SparkSession) -> Any:
    """Spark's manager of blocks, in the driver."""
    return _read_field(spark, "SparkEnv", "blockManager", _read_field(spark, "SparkEnv$", "env"))


def list_blocks(spark: SparkSession) -> list[Any]:
    """The blocks that Spark has not dropped yet."""
    infos = _read_field(spark, "storage.BlockManager", "blockInfoManager", block_manager(spark))
    blocks = _read_field(spark, "storage.BlockInfoManager", "blockInfoWrappers", infos)
    held = blocks.keySet().toArray()
    return [block for block in held if block.getClass().getSimpleName() == "PythonStreamBlockId"]


def _read_field(spark: SparkSession, owner: str, name: str, of: Any = None) -> Any:
    """A private field: py4j cannot list the methods of these classes of Spark."""
    jvm: Any = spark._jvm
    found = jvm.java.lang.Class.forName(f"org.apache.spark.{owner}").getDeclaredField(name)
    found.setAccessible(True)
    return found.get(of)
