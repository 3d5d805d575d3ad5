"""Make petastorm 0.12.1 work beside a current pyarrow and numpy. In: nothing. Out: a petastorm that can be imported.

petastorm was written for a pyarrow that had file systems of its own and Parquet datasets made of pieces, and for
numpy 1. Names that are gone are put back where petastorm looks for them; `ParquetDataset`, which means something else
today, is replaced within petastorm's own modules only, so that nobody else's pyarrow changes.

`install()` comes before petastorm's first import, in every process: a function that runs on executors lies in a module
that calls it at its top. petastorm's readers trust the store that they open: its schema is a pickle in the file
`_common_metadata`, which petastorm loads. Open none that a stranger could have written.

A store that is partitioned by a column, and pyarrow's `filters`, are refused.
"""

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, BinaryIO
from urllib.parse import urlparse

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from sparknet.errors import ConfigError, SourceError

PETASTORM_VERSION = "0.12.1"
"""The petastorm whose needs are known."""

_IMPORTERS_OF_DATASET = (
    "petastorm.reader",
    "petastorm.arrow_reader_worker",
    "petastorm.py_dict_reader_worker",
    "petastorm.etl.dataset_metadata",
    "petastorm.etl.rowgroup_indexing",
)
_READ_WORKERS = ("petastorm.arrow_reader_worker", "petastorm.py_dict_reader_worker")
_START_READ_PROCESS = """\
import runpy
from sparknet.loaders.petastorm_compat import install
install()
runpy.run_module("petastorm.workers_pool.exec_in_new_process_entrypoint", run_name="__main__", alter_sys=True)
"""


@cache
def install() -> None:
    """Import petastorm with what it misses. A second call does nothing.

    Raises:
        ConfigError: petastorm is not installed, or is of another version.
    """
    remedy = f"pip install petastorm=={PETASTORM_VERSION}"
    try:
        version = importlib.metadata.version("petastorm")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"petastorm is not installed; {remedy}") from error
    if version != PETASTORM_VERSION:
        fault = " (0.13.1 loses rows in silence)" if version == "0.13.1" else ""
        raise ConfigError(f"petastorm {version} is not known to read all rows{fault}; {remedy}")
    _put_names_back()
    with warnings.catch_warnings():
        # petastorm compares versions with distutils, which announces its end where it is still there.
        warnings.filterwarnings("ignore", ".*distutils", DeprecationWarning)
        modules = {name: _load(name) for name in _IMPORTERS_OF_DATASET}
        fs_utils, processes = _load("petastorm.fs_utils"), _load("petastorm.workers_pool.process_pool")
    for module in modules.values():
        module.pq = _Parquet
    for name in _READ_WORKERS:
        # The workers open a row group's file a second time, take nothing from it, and leave it open.
        modules[name].ParquetFile = _close
    processes.exec_in_new_process = _start_read_process
    fs_utils.FilesystemResolver.__init__ = _resolving(fs_utils.FilesystemResolver.__init__)


class Piece:
    """A row group of a Parquet file, or all of the file: what petastorm deals out to its workers.

    Args:
        path: of the file, within the file system.
        open_file_func: opens a path for reading.
        row_group: its index in the file; all where None.
        partition_keys: of the column that the store is partitioned by; there is none.
    """

    def __init__(
        self,
        path: str,
        open_file_func: Callable[[str], BinaryIO],
        row_group: int | None = None,
        partition_keys: tuple[()] = (),
    ) -> None:
        self.path, self.row_group, self.partition_keys = path, row_group, partition_keys
        self._open = open_file_func

    def get_metadata(self) -> pq.FileMetaData:
        """Read the file's footer."""
        with self._open(self.path) as file:
            return pq.read_metadata(file)

    def read(self, columns: set[str], partitions: None = None) -> pa.Table:
        """Read columns, in the file's own order."""
        with self._open(self.path) as file, pq.ParquetFile(file) as parquet:
            names = [name for name in parquet.schema_arrow.names if name in columns]
            if self.row_group is None:
                return parquet.read(names)
            return parquet.read_row_group(self.row_group, names)


class Dataset:
    """A store as petastorm sees it: its files, and what is written beside them.

    Args:
        paths: a folder, a file, or several files.
        filesystem: fsspec's.
        filters: pyarrow's; none are taken.

    Raises:
        SourceError: the folder holds no Parquet file, or is partitioned by a column.
        ConfigError: there are filters.
    """

    partitions = None

    def __init__(
        self,
        paths: str | list[str],
        filesystem: fsspec.AbstractFileSystem,
        filters: object = None,
        validate_schema: bool = False,
        metadata_nthreads: int = 1,
    ) -> None:
        if filters is not None:
            raise ConfigError(f"petastorm's filters do not work with this pyarrow, got {filters!r}; use a predicate")
        self.paths, self.fs = paths, filesystem
        self.metadata_path = self.metadata = self.common_metadata = None
        if isinstance(paths, str) and filesystem.isdir(paths):
            files = self._files_of(paths)
            self.metadata_path, self.metadata = self._beside(f"{paths.rstrip('/')}/_metadata")
            _, self.common_metadata = self._beside(f"{paths.rstrip('/')}/_common_metadata")
        else:
            files = [paths] if isinstance(paths, str) else list(paths)
        self.pieces = [Piece(file, filesystem.open) for file in files]

    def _files_of(self, folder: str) -> list[str]:
        files = []
        for path in sorted(self.fs.find(folder)):
            below = path.removeprefix(folder.rstrip("/") + "/").split("/")
            if any(name.startswith(("_", ".")) for name in below):  # what Spark and petastorm keep for themselves
                continue
            if len(below) > 1 and "=" in below[-2]:
                raise SourceError(f"{folder}: partitioned by a column ({below[-2]}); petastorm reads only plain stores")
            files.append(path)
        if not files:
            raise SourceError(f"{folder}: no Parquet file there")
        return files

    def _beside(self, path: str) -> tuple[str | None, pq.FileMetaData | None]:
        return (path, Piece(path, self.fs.open).get_metadata()) if self.fs.exists(path) else (None, None)


class _Parquet:
    """What petastorm calls of `pyarrow.parquet`. A class, since functions that Spark sends away refer to it by name."""

    ParquetDataset = Dataset
    ParquetDatasetPiece = Piece
    read_metadata = staticmethod(pq.read_metadata)


def _load(name: str) -> Any:
    return importlib.import_module(name)


def _put_names_back() -> None:
    for holder, name, value in (
        (np, "string_", np.bytes_),
        (np, "unicode_", np.str_),
        (pa, "LocalFileSystem", LocalFileSystem),
        (pa.lib, "ArrowIOError", OSError),
    ):
        if not hasattr(holder, name):
            setattr(holder, name, value)
    _add_module("pyarrow.filesystem", LocalFileSystem=LocalFileSystem)
    _add_module("pyarrow.hdfs", HadoopFileSystem=type("HadoopFileSystem", (), {}))
    # Python 3.12 has no distutils; setuptools brings one, where it is there.
    version = importlib.import_module("packaging.version").Version
    _add_module("distutils")
    _add_module("distutils.version", LooseVersion=version)


def _add_module(name: str, **names: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            importlib.import_module(name)
        except ImportError:
            module = types.ModuleType(name)
            vars(module).update(names)
            sys.modules[name] = module


def _close(file: BinaryIO) -> None:
    file.close()


def _open_filesystem(url: str) -> fsspec.AbstractFileSystem:
    if url.startswith("hdfs:"):
        try:
            _load("hdfs_native")  # without it fsspec would look for a JVM's libhdfs
        except ImportError as error:
            raise SourceError(f"{url}: no client for hdfs:// is installed; pip install 'sparknet[hdfs]'") from error
    return fsspec.core.url_to_fs(url)[0]


def _resolving(original: Callable[..., None]) -> Callable[..., None]:
    """Let fsspec open what petastorm opened by pyarrow's own file systems; hdfs:// is hdfs-native's then."""

    def resolve(self: Any, dataset_url: Any, *others: Any, **options: Any) -> None:
        parsed = urlparse(dataset_url) if isinstance(dataset_url, str) else dataset_url
        if parsed.scheme not in ("file", "hdfs"):
            original(self, dataset_url, *others, **options)
            return
        # Spark sends the factory to the executors: it is a function that they find by its name.
        self._filesystem_factory = partial(_open_filesystem, parsed.geturl())
        self._dataset_url, self._parsed_dataset_url = dataset_url, parsed
        self._filesystem = self._filesystem_factory()

    return resolve


def _start_read_process(function: Callable[..., None], *words: Any, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process of petastorm's process pool, with this module first."""
    handle, name = tempfile.mkstemp(suffix="runnable")
    with os.fdopen(handle, "wb") as file:
        _load("dill").dump((function, words, options), file)
    return subprocess.Popen([sys.executable, "-c", _START_READ_PROCESS, name])  # noqa: S603 - this Python itself
