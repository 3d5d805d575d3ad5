"""Parquet files of images, as Hugging Face's hub has them: `image`, a struct of bytes and path, and `label`.

Names of classes come from the files' own metadata. A label of -1 is none, as in test sets. A row group is a part; an
image is found again by its row.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.layouts.plan import Plan, Sample
from sparknet.loaders.source import File, Listing, RangeReader, list_files

if TYPE_CHECKING:  # imported where it is used: most sources are no Parquet
    import pyarrow as pa
    import pyarrow.parquet as pq

# As the hub's sets call them: ImageNet, CIFAR-100, WebDataset's conversions.
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img", "jpg", "png"), ("label", "fine_label", "labels", "cls")

_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.parquet")

_FOOTER_BYTES = 64 * 1024


class RowGroup(NamedTuple):
    """What one task reads: a row group, whose first row is `first` in its file."""

    url: str
    size: int
    number: int
    first: int
    length: int
    samples: int


def plan(listing: Listing) -> Plan[RowGroup] | None:
    """Recognise Parquet files with a column of images.

    Raises:
        SourceError: there is no such column; or several sets were named together.
        ShardError: a file is damaged, or has other columns than the first.
    """
    files = listing.ending(".parquet")
    if not files or (listing.root is None and not listing.url.lower().endswith(".parquet")):
        return None
    _check_one_set(listing, files)
    parts: list[RowGroup] = []
    names: tuple[str, ...] = ()
    labelled = False
    for file in files:
        with _opened(file.url, file.size) as table:
            _, label = _columns(table.schema_arrow, file.url)
            if parts and (label is not None) != labelled:
                raise ShardError(f"{file.url}: has not the columns of {files[0].url}")
            labelled = label is not None
            names = names or _names(table.schema_arrow, label)
            first = 0
            for number in range(table.metadata.num_row_groups):
                group = table.metadata.row_group(number)
                parts.append(RowGroup(file.url, file.size, number, first, group.total_byte_size, group.num_rows))
                first += group.num_rows
    return Plan(
        layout="parquet",
        parts=tuple(parts),
        read=read_rows,
        again=read_rows_again,
        class_names=names,
        labelled=labelled,
    )


def read_rows(part: RowGroup) -> Iterator[Sample]:
    """Read the images of a row group.

    Raises:
        ShardError: it is damaged.
        SourceError: the file cannot be read.
    """
    stem = part.url.rpartition("/")[2].removesuffix(".parquet")
    with _opened(part.url, part.size) as table:
        image, label = _columns(table.schema_arrow, part.url)
        rows = _read(table, part.number, [image, label] if label else [image], part.url)
        labels = rows[label].to_pylist() if label else [None] * rows.num_rows
        for row, ((data, path), found) in enumerate(zip(_images(rows[image]), labels, strict=True), part.first):
            key = f"{stem}/{row:06d}" + (f"/{path}" if path else "")
            yield Sample(key, data, found if found is not None and found >= 0 else None, part.url, row)


def read_rows_again(url: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read images of a file again, by their rows."""
    [file] = list_files(url)
    with _opened(file.url, file.size) as table:
        image, _ = _columns(table.schema_arrow, url)
        counts = [table.metadata.row_group(number).num_rows for number in range(table.metadata.num_row_groups)]
        starts = np.cumsum([0, *counts])
        held, images = -1, []
        for row, _ in places:
            number = int(np.searchsorted(starts, row, side="right")) - 1
            if number != held:
                held, images = number, list(_images(_read(table, number, [image], url)[image]))
            yield images[row - int(starts[number])][0]


def _check_one_set(listing: Listing, files: Sequence[File]) -> None:
    sets: dict[str, tuple[str, str]] = {}
    for file in files:
        found = _SHARD.fullmatch(file.url.rpartition("/")[2])
        if found:
            sets.setdefault(found["split"], (found["number"], found["count"]))
    if len(sets) > 1:
        split, (number, count) = next(iter(sets.items()))
        last = f"{int(count) - 1:0{len(number)}d}"
        raise SourceError(
            f"{listing.url}: holds sets ({', '.join(sets)}); name one: "
            f"{files[0].url.rpartition('/')[0]}/{split}-{{{'0' * len(number)}..{last}}}-of-{count}.parquet"
        )


def _opened(url: str, size: int) -> "pq.ParquetFile":
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BufferedReader(RangeReader(url, 0, size, _FOOTER_BYTES, whole_reads=True), _FOOTER_BYTES)
    try:
        return pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        raise ShardError(f"{url}: not a Parquet file: {_described(error)}; copy or fetch it again") from error


def _read(table: "pq.ParquetFile", number: int, columns: list[str], url: str) -> "pa.Table":
    import pyarrow as pa

    try:
        return table.read_row_group(number, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ShardError(
            f"{url}: row group {number} is damaged: {_described(error)}; copy or fetch it again"
        ) from error


def _columns(schema: "pa.Schema", url: str) -> tuple[str, str | None]:
    """Find the columns of images and of labels."""
    image = next((name for name in _IMAGE_COLUMNS if name in schema.names), None)
    if image is None or not _holds_images(schema.field(image).type):
        raise SourceError(
            f"{url}: none of its columns ({', '.join(schema.names)}) holds images; one of {', '.join(_IMAGE_COLUMNS)} "
            "is to be of bytes, or of a struct of bytes and path"
        )
    import pyarrow as pa

    label = next((name for name in _LABEL_COLUMNS if name in schema.names), None)
    if label is not None and not pa.types.is_integer(schema.field(label).type):
        raise SourceError(f"{url}: its column {label} is of {schema.field(label).type}; classes are whole numbers")
    return image, label


def _holds_images(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_bytes(kind.field("bytes").type)
    return _is_bytes(kind)


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _images(column: "pa.ChunkedArray") -> Iterator[tuple[bytes, str | None]]:
    """Give bytes and path of each image; nothing where there is none."""
    import pyarrow as pa

    for chunk in column.chunks:
        if pa.types.is_struct(chunk.type):
            paths = chunk.field("path") if chunk.type.get_field_index("path") >= 0 else [None] * len(chunk)
            for valid, data, path in zip(chunk.is_valid(), chunk.field("bytes"), paths, strict=True):
                there = valid.as_py() and data.as_py() is not None
                yield data.as_py() if there else b"", path.as_py() if path is not None else None
        else:
            for data in chunk:
                yield data.as_py() or b"", None


def _names(schema: "pa.Schema", label: str | None) -> tuple[str, ...]:
    """Find the names of the classes in what the hub's library writes beside the schema."""
    try:
        found: Any = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _described(error: BaseException) -> str:
    return " ".join(str(error).split())
