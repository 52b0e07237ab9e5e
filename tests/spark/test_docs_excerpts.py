"""Code in the docs that is an excerpt of a program runs too, in a program that has what the page takes for granted."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.redis_server import MISSING, available

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

GIVEN = """
import json, os, sys, warnings
from dataclasses import dataclass, field

import datasketches
import numpy as np
from pyspark.sql import SparkSession

import bedload as bl

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 200).load()
cars = numbers.selectExpr(
    "concat('car-', value % 50) as car", "concat('segment-', value % 7) as segment",
    "cast(30 + value % 90 as double) as speed", "timestamp as ts"
)


class Trip(bl.Operator):
    count: int = bl.value(0)

    def process(self, key, rows, ctx):
        self.count += len(rows)
        yield (key, self.count, 1.0)[:WIDTH]

"""


@dataclass(frozen=True)
class Excerpts:
    """The blocks of a page: how many, what goes between them, and what comes out."""

    blocks: int
    before: dict[int, str]
    """Code before a block, by its number; the number after the last is for the end."""
    width: int = 2
    """How many columns the page's operator gives."""
    said: tuple[str, ...] = ()
    instead: tuple[tuple[str, str], ...] = ()


AGAIN = """
query = out.writeStream.foreachBatch(sink).option("checkpointLocation", "query").start()
cluster.wait_for_epoch(query, LAST)
query.stop()
"""

HARNESS = """
from bedload.testing import OperatorHarness

def harness(operator, row):
    made = OperatorHarness(operator, key="car", schema="car string, n long")
    made.run_epoch([{"car": "a", **row}])
    return made
"""

ON_DISK = """
os.makedirs("/data/nvme")
df = numbers.selectExpr("value % 50 as user")
class Profile(Trip):
    pass
"""
APPLIED = 'schema="user long, n long")\n'
SHOWN = (
    APPLIED
    + """
    query = out.writeStream.format("noop").start()
    cluster.wait_for_epoch(query)
    print([(store["store"], store["keys"]) for store in cluster.stores()])
    query.stop()
"""
)

PAGES = {
    "README.md": Excerpts(
        3,
        {
            0: HARNESS,
            2: "print('closed', harness(Session, {'segment': 'b'}).advance_watermark('1 minute'))",
            3: "running.stop()\ncluster.stop()",
        },
        width=3,
        said=("|car-", "closed [{'car': 'a', 'n': 1}]", "rescale to 4 workers: done", "|  drain|"),
    ),
    "docs/concepts/time.md": Excerpts(
        4,
        {
            0: HARNESS,
            1: "print('closed', harness(Session, {'ts': 5}).advance_watermark(to=60_005))",
            2: """
session = harness(Session, {"ts": 5})
print("reported", session.advance_time(5_000), "closed", session.advance_watermark(to=60_005))
cars = cars.withWatermark("ts", "10 minutes")
cluster = bl.attach(spark, workers=1, checkpoint="/data/bedload")
""",
            3: """
query = out.writeStream.format("noop").start()
cluster.wait_for_epoch(query)
query.stop()
cluster.stop()
""",
            4: """
load = harness(Load, {})
print("lately", load.state["a"]["lately"], load.advance_time("10 minutes"), load.state["a"]["lately"])
""",
        },
        said=(
            "closed [{'car': 'a', 'n': 1}]\nreported [{'car': 'a', 'n': 1}] closed [{'car': 'a', 'n': 1}]",
            "lately 1 [] 0",
        ),
        instead=(
            ("cluster.apply(", "out = cluster.apply("),
            ('schema="…"', 'schema="car string, n long"'),
            ("# reading counts, too", "\n    process = lambda self, key, rows, ctx: [(key, len(rows))]"),
        ),
    ),
    "docs/how-to/expire-state.md": Excerpts(
        4,
        {
            1: """
cluster = bl.attach(spark, workers=1)
rows = numbers.selectExpr(
    "concat('c-', value % 3) as customer", "concat('s-', value) as shop", "array('tea') as looks",
    "cast(null as string) as mood", "timestamp as at",
)
""",
            2: AGAIN.replace(", LAST", "").replace("writeStream.foreachBatch(sink)", "writeStream.format('noop')")
            + """
query = counts.writeStream.format("memory").queryName("counts").start()
cluster.wait_for_epoch(query)
query.stop()
spark.sql("select max(n) as most from counts").show()
cluster.stop()
cluster = bl.attach(spark, workers=1)
""",
            3: """
query = out.writeStream.format("noop").start()
cluster.wait_for_epoch(query)
query.stop()
cluster.stop()
""",
        },
        said=("|most|",),
        instead=(('schema="…"', 'schema="customer string, shops long, mood string"'),),
    ),
    "docs/concepts/durable-state.md": Excerpts(
        1, {1: "cluster.wait_for_epoch(query)\nprint('done')\nquery.stop()\ncluster.stop()"}, said=("done",)
    ),
    "docs/how-to/change-an-operator.md": Excerpts(2, {2: "print(Trip.__bedload_specs__)"}, said=("renamed_from='n'",)),
    "docs/how-to/give-an-operator-parameters.md": Excerpts(
        3,
        {
            0: """
load = str.upper
class Sessions(Trip):
    gap: int = bl.param(30)

cluster = bl.attach(spark, workers=1)
clicks, out = cars.withColumnRenamed("car", "user"), "user string, n long"
""",
            3: "print(short.columns, long.columns, Scored(model_path='model'), Histogram)\ncluster.stop()",
        },
        said=("['user', 'n'] ['user', 'n'] ", "Scored(model_path='model')"),
    ),
    "docs/how-to/recover.md": Excerpts(
        3,
        {3: "print(os.listdir('/data/backup/trips'))\nrunning.stop()\ncluster.stop()"},
        said=("bedload.json",),
        instead=(("running.await_termination()", "cluster.wait_for_epoch(running)"), ("s3://backup", "/data/backup")),
    ),
    "docs/how-to/scale-a-running-query.md": Excerpts(
        2, {2: "print(cluster.history()[-1]['outcome'])\nquery.stop()\ncluster.stop()"}, said=("rescale to 4",)
    ),
    "docs/how-to/use-foreach-batch.md": Excerpts(
        4,
        {
            0: """
cluster = bl.attach(spark, workers=1, checkpoint="/data/bedload")
out = cluster.apply(cars, key="car", operator=Trip, schema="car string, n long")
""",
            1: "cluster.wait_for_epoch(query)\nquery.stop()",
            2: AGAIN.replace("LAST", "2"),
            3: AGAIN.replace("LAST", "4"),
            4: AGAIN.replace("LAST", "6")
            + """
live = {key: cluster.state("Trip").get(key)["count"] for key in ("car-0", "car-49")}
cluster.stop()
kept = dict(sqlite3.connect("trips.db").execute("SELECT car, n FROM trips"))
print(os.listdir(), "in the database:", len(kept), {key: kept[key] for key in live} == live)
""",
        },
        said=("+---", "one_file", "many_files", "in the database: 50 True"),
    ),
    "docs/concepts/stores.md": Excerpts(
        1, {0: ON_DISK}, said=("('disk', ",), instead=((APPLIED, SHOWN), ("/mnt/nvme", "/data/nvme"))
    ),
    "docs/how-to/state-larger-than-memory.md": Excerpts(
        2,
        {
            0: ON_DISK,
            1: """
cluster = bl.attach(spark, workers=1)
df = numbers.selectExpr("value % 50 as user", "value as amount")
""",
            2: "cluster.stop()",
        },
        said=("('disk', ",),
        instead=(
            (APPLIED, SHOWN),
            ("/mnt/nvme", "/data/nvme"),
            ("s3://bucket", "/data"),
            ('.toTable("profiles").awaitTermination()', '.format("noop").start().stop()'),
        ),
    ),
    "docs/how-to/state-in-redis.md": Excerpts(
        1,
        {
            0: f"""
{ON_DISK}
sys.path.insert(0, {str(ROOT)!r})
from tests.redis_server import RedisProcess
redis = RedisProcess()
""",
            1: "redis.close()",
        },
        said=("('redis', ",),
        instead=(
            (APPLIED, SHOWN),
            ('"redis://user:password@redis.internal:6379/0"', "redis.url"),
            ("s3://bucket", "/data"),
            ('.toTable("profiles").awaitTermination()', '.format("noop").start().stop()'),
        ),
    ),
    "docs/reference/aggregates.md": Excerpts(
        5,
        {
            0: "cluster = bl.attach(spark, workers=1)",
            1: """
query = out.writeStream.format("noop").start()
cluster.wait_for_epoch(query)
""",
            2: """
query.stop()
cluster.stop()
cluster = bl.attach(spark, workers=1, checkpoint="/data/bedload")
visits = numbers.selectExpr("'/index.html' as page", "value % 20 as user", "value as ms", "'a' as referrer")
""",
            3: """
query = out.writeStream.format("noop").option("checkpointLocation", "/data/query").start()
cluster.wait_for_epoch(query, 1)
""",
            4: """
print("at most", json.dumps(datasketches.hll_sketch.deserialize(state["hll(user, 9)"]).get_upper_bound(2)))
spark.read.format("bedload").load("/data/bedload").createTempView("state")
spark.sql(SQL).show()
""",
            5: """
query.stop()
query = out.writeStream.format("memory").queryName("out").start()
cluster.wait_for_epoch(query)
spark.sql("select * from out order by car limit 1").show()
query.stop()
cluster.stop()
""",
        },
        said=(
            "count()=1, sum(speed)=33.0, count(speed)=1, last(ts)=",
            "\n1 33.0\n",
            "at most 20.",
            "|/index.html|",
            "|car-0|",
        ),
    ),
    "docs/reference/state-types.md": Excerpts(
        2, {2: "print(Deadlines.__bedload_specs__, Model.__bedload_specs__)"}, said=("queue", "weights")
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_excerpts_of_a_page_run(page: str, tmp_path: Path) -> None:
    if "redis" in page and not available():
        pytest.skip(MISSING)
    excerpts, text = PAGES[page], (ROOT / page).read_text()
    blocks = re.findall(r"(?<!<!-- run -->\n)^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == excerpts.blocks
    sql = re.findall(r"^```sql\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = GIVEN.replace("WIDTH", str(excerpts.width)) + f"SQL = {(sql[0] if sql else '')!r}\n"
    for number, block in enumerate([*blocks, ""]):
        code += f"{excerpts.before.get(number, '')}\n{block}\n"
    for there, here in (*excerpts.instead, ("/data", str(tmp_path / "data"))):
        code = code.replace(there, here)
    script = tmp_path / "page.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for said in excerpts.said:
        assert said in done.stdout, done.stdout


def test_all_python_of_the_docs_is_run_somewhere() -> None:
    elsewhere = {
        "docs/how-to/read-state.md": "test_source_spark.py",
        "docs/how-to/take-over-a-spark-query.md": "test_source_spark.py",
        "docs/how-to/run-on-standalone-spark.md": "test_docs_standalone.py",
        "docs/how-to/test-an-operator.md": "tests/unit/test_testing_docs.py",
        "docs/reference/api.md": "signatures and examples, from the docstrings",
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    with_code = {
        str(page.relative_to(ROOT))
        for page in pages
        if re.search(r"(?<!<!-- run -->\n)^```python", page.read_text(), re.MULTILINE)
    }
    assert with_code == {*PAGES, *elsewhere}
