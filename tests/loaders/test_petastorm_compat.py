"""A store that petastorm writes through Spark is read again by each of its readers, and by plain pyarrow."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType

from sparknet.errors import ConfigError, SourceError
from sparknet.loaders.petastorm_compat import install

install()

from petastorm import make_batch_reader, make_reader  # noqa: E402 - what install() is for
from petastorm.codecs import NdarrayCodec, ScalarCodec  # noqa: E402
from petastorm.etl.dataset_metadata import materialize_dataset  # noqa: E402
from petastorm.predicates import in_set  # noqa: E402
from petastorm.pytorch import DataLoader  # noqa: E402
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row  # noqa: E402

SIDE, ROWS, FILES = 6, 50, 3
SCHEMA = Unischema(
    "Images",
    [
        UnischemaField("key", np.str_, (), ScalarCodec(StringType()), False),
        UnischemaField("label", np.int64, (), ScalarCodec(LongType()), False),
        UnischemaField("image", np.uint8, (SIDE, SIDE, 3), NdarrayCodec(), False),
    ],
)


def image(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def encoded(index: int) -> Any:
    return dict_to_spark_row(SCHEMA, {"key": f"{index:03d}.JPEG", "label": index % 7, "image": image(index)})


@pytest.fixture(scope="module")
def store(sc: SparkContext, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store: 50 rows in three files of several row groups each."""
    url = f"file://{tmp_path_factory.mktemp('petastorm')}/a store"
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    with materialize_dataset(spark, url, SCHEMA):
        rows = sc.parallelize(range(ROWS), FILES).map(encoded)
        frame = spark.createDataFrame(rows, SCHEMA.as_spark_schema())
        frame.write.option("parquet.block.row.count.limit", "7").parquet(url)
    return url


def assert_all_rows(rows: dict[str, tuple[int, np.ndarray]]) -> None:
    assert sorted(rows) == [f"{index:03d}.JPEG" for index in range(ROWS)]
    for index in range(ROWS):
        label, pixels = rows[f"{index:03d}.JPEG"]
        assert label == index % 7
        assert (pixels.dtype, pixels.shape) == (np.dtype(np.uint8), (SIDE, SIDE, 3))
        np.testing.assert_array_equal(pixels, image(index))


def files_of(store: str) -> list[Path]:
    return sorted(Path(store.removeprefix("file://")).glob("*.parquet"))


def test_the_store_has_files_of_several_row_groups(store: str) -> None:
    groups = [pq.read_metadata(path).num_row_groups for path in files_of(store)]
    assert len(groups) == FILES
    assert min(groups) > 1


@pytest.mark.parametrize("pool", ["thread", "dummy", pytest.param("process", marks=pytest.mark.heavy)])
def test_make_reader(pool: str, store: str) -> None:
    with make_reader(store, reader_pool_type=pool, workers_count=3, num_epochs=1) as reader:
        rows = list(reader)
    assert len(rows) == ROWS
    assert_all_rows({row.key: (row.label, row.image) for row in rows})


def test_shards_divide_the_rows(store: str) -> None:
    keys = []
    for shard in range(2):
        with make_reader(store, reader_pool_type="dummy", num_epochs=1, cur_shard=shard, shard_count=2) as reader:
            part = [row.key for row in reader]
        assert part
        keys += part
    assert sorted(keys) == [f"{index:03d}.JPEG" for index in range(ROWS)]


def test_a_predicate_and_some_fields(store: str) -> None:
    predicate = in_set({2}, "label")
    with make_reader(store, schema_fields=["key", "label"], predicate=predicate, num_epochs=1) as reader:
        rows = list(reader)
    assert sorted(row.key for row in rows) == [f"{index:03d}.JPEG" for index in range(2, ROWS, 7)]
    assert set(rows[0]._fields) == {"key", "label"}


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_make_batch_reader(pool: str, store: str) -> None:
    with (
        pytest.warns(UserWarning, match="Please use make_reader"),
        make_batch_reader(store, reader_pool_type=pool, workers_count=3, num_epochs=1) as reader,
    ):
        batches = list(reader)
    field = SCHEMA.fields["image"]
    rows = {
        key: (label, field.codec.decode(field, data))
        for batch in batches
        for key, label, data in zip(batch.key, batch.label, batch.image, strict=True)
    }
    assert sum(len(batch.key) for batch in batches) == ROWS
    assert_all_rows(rows)


def test_pytorch_data_loader(store: str) -> None:
    import torch

    rows, sizes = {}, []
    with DataLoader(make_reader(store, num_epochs=1), batch_size=8, shuffling_queue_capacity=20) as loader:
        for batch in loader:
            assert batch["image"].dtype == torch.uint8
            sizes.append(len(batch["key"]))
            for key, label, pixels in zip(batch["key"], batch["label"], batch["image"], strict=True):
                rows[key] = (int(label), pixels.numpy())
    assert sizes == [8] * 6 + [2]
    assert_all_rows(rows)


def test_plain_pyarrow(store: str) -> None:
    folder = store.removeprefix("file://")
    table = pq.read_table(folder)
    field = SCHEMA.fields["image"]
    assert table.num_rows == ROWS
    assert_all_rows({row["key"]: (row["label"], field.codec.decode(field, row["image"])) for row in table.to_pylist()})
    assert sum(len(fragment.row_groups) for fragment in pq.ParquetDataset(folder).fragments) > FILES  # its own class


def test_executors_read_it_too(store: str, sc: SparkContext) -> None:
    def keys(_: int) -> list[str]:
        with make_reader(store, schema_fields=["key"], reader_pool_type="dummy", num_epochs=1) as reader:
            return [row.key for row in reader]

    for found in sc.parallelize(range(2), 2).map(keys).collect():
        assert sorted(found) == [f"{index:03d}.JPEG" for index in range(ROWS)]


def test_a_file_alone_and_a_folder_without_petastorms_metadata(store: str, tmp_path: Path) -> None:
    first, second, _ = files_of(store)
    for path in (first, second):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for url, files in ((f"file://{first}", [first]), (f"file://{tmp_path}", [first, second])):
        with make_batch_reader(url, reader_pool_type="dummy", shuffle_row_groups=False, num_epochs=1) as reader:
            found = [str(key) for batch in reader for key in batch.key]
        assert found == [key for file in files for key in pq.read_table(file)["key"].to_pylist()]


def test_a_partitioned_store_is_refused(tmp_path: Path, store: str) -> None:
    (tmp_path / "split=train").mkdir()
    (tmp_path / "split=train" / "part.parquet").write_bytes(files_of(store)[0].read_bytes())
    with pytest.raises(SourceError, match=rf"^{tmp_path}: partitioned by a column \(split=train\)"):
        make_batch_reader(f"file://{tmp_path}")


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"^{tmp_path}: no Parquet file there$"):
        make_batch_reader(f"file://{tmp_path}")


def test_filters_are_refused_not_forgotten(store: str) -> None:
    with pytest.raises(ConfigError, match=r"filters do not work with this pyarrow, got \[\('label', '=', 2\)\]"):
        make_reader(store, filters=[("label", "=", 2)])


def test_hdfs_without_its_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(SourceError, match=r"^hdfs://host/store: no client for hdfs:// is installed; pip install"):
        make_reader("hdfs://host/store")


def test_a_second_install_changes_nothing() -> None:
    import petastorm.fs_utils

    before = petastorm.fs_utils.FilesystemResolver.__init__
    install()
    assert petastorm.fs_utils.FilesystemResolver.__init__ is before


# ---- The first call in a process.

WITHOUT_DISTUTILS = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("distutils", "setuptools"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
from sparknet.loaders.petastorm_compat import install
install()
import petastorm
import petastorm.spark  # has a distutils import of its own
assert not {"torch", "pyspark.pandas"} & sys.modules.keys()
"""


def test_a_python_without_distutils() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_DISTUTILS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_petastorm_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ConfigError, match=r"^petastorm is not installed; pip install petastorm==0\.12\.1$"):
        install.__wrapped__()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.13.1", r"petastorm 0\.13\.1 is not known to read all rows \(0\.13\.1 loses rows in silence\); pip install"),
        ("0.12.0", r"petastorm 0\.12\.0 is not known to read all rows; pip install petastorm==0\.12\.1$"),
    ],
)
def test_another_petastorm_is_refused(version: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(ConfigError, match=message):
        install.__wrapped__()
