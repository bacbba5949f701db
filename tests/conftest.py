"""What all fast tests share: Spark's workers start without compiling PySpark anew."""

from spark_home import use_installed_pyspark

use_installed_pyspark()
