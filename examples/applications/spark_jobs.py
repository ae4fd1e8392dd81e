"""A Spark session that stays, and jobs that are asked for: starting one takes half a minute.

`serve` builds data, then runs what a client asks for: a job, and how often. `ask` is such a client.
Sessions of several numbers run side by side.
"""

from __future__ import annotations

import socket
import sys

PORT, MASTER = 7900, 7077  # of session 0
ROWS, FEATURES, FILLED = 3000, 60_000, 20
KEYS = 600_000
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # compiling takes more time than it saves


def session(number: int):
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "h1",
        "spark.driver.bindAddress": "h1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": JAVA,
        "spark.driver.extraJavaOptions": JAVA,
        "spark.ui.enabled": "false",
        "spark.locality.wait": "0s",
        "spark.default.parallelism": "3",
        "spark.sql.shuffle.partitions": "3",
    }
    builder = SparkSession.builder.master(f"spark://h1:{MASTER + number}").appName("weft")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def jobs(spark):
    """Logistic regression on sparse rows; sorting keys with a load each."""
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.linalg import SparseVector
    from pyspark.sql import functions as f

    def row(n: int):
        import random

        picked = random.Random(n)
        places = sorted(picked.sample(range(FEATURES), FILLED))
        return float(n % 2), SparseVector(FEATURES, places, [picked.random() for _ in places])

    rows = spark.sparkContext.parallelize(range(ROWS), 3).map(row).toDF(["label", "features"])
    rows.cache().count()
    load = f.md5(f.col("id").cast("string"))
    keys = spark.range(0, KEYS, 1, 3).select(f.rand(1).alias("key"), load).cache()
    keys.count()
    regression = LogisticRegression(maxIter=5, standardization=False, tol=0.0, aggregationDepth=2)
    return {
        "lr": lambda: regression.fit(rows),
        "sort": lambda: keys.sort("key").write.format("noop").mode("overwrite").save(),
    }


def serve(number: int) -> None:
    runs = jobs(session(number))
    with socket.create_server(("127.0.0.1", PORT + number)) as server:
        print("ready", flush=True)
        while True:
            with server.accept()[0] as connection:
                job, times = connection.makefile().readline().split()
                for _ in range(int(times)):
                    runs[job]()
                connection.sendall(b"done\n")


def ask(job: str, times: str, number: int) -> None:
    with socket.create_connection(("127.0.0.1", PORT + number)) as connection:
        connection.sendall(f"{job} {times}\n".encode())
        assert connection.recv(5) == b"done\n", "the job failed"


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    ask(sys.argv[2], sys.argv[3], int(sys.argv[4]))
