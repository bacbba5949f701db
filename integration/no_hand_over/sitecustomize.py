"""Makes each Python process behave as with a Spark that takes no rows along with partitions.

`integration/conftest.py` puts this on the path of the processes that tests start, with
`make integration HAND_OVER=off`.
"""

from pyspark.sql import datasource_internal

del datasource_internal._SimpleStreamReaderWrapper.getCache
