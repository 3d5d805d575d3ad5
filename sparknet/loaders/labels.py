"""From names to class indices. In: label files as ImageNet's users have them. Out: the class of each key.

Index and name of a class follow one rule everywhere: WordNet IDs, sorted, are classes 0..N-1.
"""

import csv
import io
import itertools
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from sparknet.errors import LabelError
from sparknet.loaders.source import list_files, read_range, read_text

_TRUTH = "ILSVRC2012_validation_ground_truth.txt"

# The devkit's own files are below 2 MB.
_DEVKIT_LIMIT = 64 * 1024 * 1024

_SOLUTION_HEAD = "ImageId,PredictionString"


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What a label file says.

    Attributes:
        url: where it was read.
        by_key: class index of each named image, 0-based.
        classes: how many classes there are: given by the classes that were known beforehand, else the largest index
            plus one.
    """

    url: str
    by_key: Mapping[str, int]
    classes: int


def synset_indices(wordnet_ids: Sequence[str]) -> dict[str, int]:
    """Number WordNet IDs (or any class names) in sorted order: 0..N-1.

    Raises:
        LabelError: a name occurs twice.
    """
    names = sorted(wordnet_ids)
    for first, second in itertools.pairwise(names):
        if first == second:
            raise LabelError(f"class {first} occurs twice; each class needs one name")
    return {name: index for index, name in enumerate(names)}


def read_labels(url: str, devkit_ids_url: str | None = None, class_names: Sequence[str] = ()) -> Labels:
    """Read a label file of any kind.

    `name index` a line, with 0-based indices by sorted WordNet ID (`train.txt`, `val.txt`), or one devkit ID a line
    (`ILSVRC2012_validation_ground_truth.txt`): 1-based, in the devkit's own order, for the image of that line's
    number. The latter needs the devkit's table of IDs; the devkit itself, `ILSVRC2012_devkit_t12.tar.gz`, holds both.
    Or Kaggle's LOC_val_solution.csv.

    Args:
        url: the label file.
        devkit_ids_url: the table, `ID WordNet-ID` a line (what follows is ignored).
        class_names: WordNet IDs of the classes by index, where they are known (from the train tar).

    Raises:
        LabelError: a line cannot be read, names an image twice, or a class that is not there; or an image whose name
            begins with its WordNet ID has another class.
        SourceError: a file cannot be read.
    """
    if url.endswith((".tar.gz", ".tgz")):
        text, ids = _read_devkit(url)
        by_key = _ground_truth(url, _fields(text), ids, "its meta.mat", class_names)
        return Labels(url=url, by_key=by_key, classes=len(class_names) or max(by_key.values()) + 1)
    lines = _fields(read_text(url))
    if not lines:
        raise LabelError(f"{url}: no label in it; a label file holds a line an image")
    if lines[0][1] == [_SOLUTION_HEAD]:
        by_key = read_solution(url, class_names)
    elif all(len(fields) == 1 and (devkit_ids_url or fields[0].isdecimal()) for _, fields in lines):
        if devkit_ids_url is None:
            raise LabelError(
                f"{url}: one field a line is the devkit's ground truth, whose IDs are not class indices; "
                "name the devkit's table of IDs (--devkit-ids FILE)"
            )
        by_key = _ground_truth(url, lines, _read_devkit_ids(devkit_ids_url), devkit_ids_url, class_names)
    else:
        by_key = _named(url, lines)
        if 0 not in by_key.values() and not class_names:
            raise LabelError(f"{url}: no image has class 0; classes are counted from 0, by sorted WordNet ID")
    classes = len(class_names) or max(by_key.values()) + 1
    for key, index in by_key.items():
        if index >= classes:
            raise LabelError(f"{url}: {key} has class {index}, but there are {classes} classes (0 to {classes - 1})")
    _check_order(url, by_key, class_names)
    return Labels(url=url, by_key=by_key, classes=classes)


def _fields(text: str) -> list[tuple[int, list[str]]]:
    """Give the number and the fields of each line, but of empty ones."""
    return [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def read_solution(url: str, class_names: Sequence[str] = ()) -> dict[str, int]:
    """Read Kaggle's LOC_val_solution.csv: `ImageId,WordNet-ID and box, again for each box`.

    Args:
        url: the file.
        class_names: WordNet IDs of the classes by index, where they are known; else those that occur, sorted.

    Returns:
        Class index of each image, by the name of its file.

    Raises:
        LabelError: a line cannot be read, names an image twice, or a class that is not there.
        SourceError: the file cannot be read.
    """
    synsets: dict[str, str] = {}
    lines = csv.reader(read_text(url).splitlines())
    for number, fields in enumerate(lines, 1):
        if not fields or number == 1:
            continue
        image, words = fields[0], fields[-1].split()
        if len(fields) != 2 or not words:
            raise LabelError(f"{url}, line {number}: 'image,WordNet-ID x y x y' expected, got {','.join(fields)!r}")
        if image in synsets:
            raise LabelError(f"{url}, line {number}: {image} is labelled twice")
        synsets[image] = words[0]
    index = synset_indices(list(class_names or set(synsets.values())))
    for image, synset in synsets.items():
        if synset not in index:
            raise LabelError(f"{url}: {image} is of {synset}, which is not a class of the train set")
    return {f"{image}.JPEG": index[synset] for image, synset in synsets.items()}


def _named(url: str, lines: list[tuple[int, list[str]]]) -> dict[str, int]:
    by_key: dict[str, int] = {}
    for number, fields in lines:
        if len(fields) < 2 or not fields[-1].isdecimal():
            raise LabelError(f"{url}, line {number}: 'name index' expected, got {' '.join(fields)!r}")
        key = " ".join(fields[:-1])
        if key in by_key:
            raise LabelError(f"{url}, line {number}: {key} is labelled twice")
        by_key[key] = int(fields[-1])
    return by_key


def _check_order(url: str, by_key: Mapping[str, int], class_names: Sequence[str]) -> None:
    """Compare with the classes that training images have in their names (n01440764_10026.JPEG)."""
    index = {name: i for i, name in enumerate(class_names)}
    for key, label in by_key.items():
        wordnet_id = PurePosixPath(key).name.split("_")[0]
        if index.get(wordnet_id, label) != label:
            raise LabelError(
                f"{url}: {key} has class {label}, but class {label} is {class_names[label]} and {wordnet_id} is class "
                f"{index[wordnet_id]}; number the classes by sorted WordNet ID"
            )


def _read_devkit_ids(url: str) -> dict[int, str]:
    wordnet_ids: dict[int, str] = {}
    for number, line in enumerate(read_text(url).splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 2 or not fields[0].isdecimal():
            raise LabelError(f"{url}, line {number}: 'ID WordNet-ID' expected, got {line!r}")
        if int(fields[0]) in wordnet_ids:
            raise LabelError(f"{url}, line {number}: ID {fields[0]} occurs twice")
        wordnet_ids[int(fields[0])] = fields[1]
    return wordnet_ids


def _read_devkit(url: str) -> tuple[str, dict[int, str]]:
    """Take the ground truth, and the WordNet ID of each devkit ID, out of the devkit's tar."""
    files = list_files(url)
    data = read_range(files[0].url, 0, files[0].size)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            held = {PurePosixPath(info.name).name: info for info in tar if info.isreg()}
            truth, meta = (_member(tar, held, name, url) for name in (_TRUTH, "meta.mat"))
        return truth.decode("ascii"), _read_meta(meta, url)
    except (tarfile.TarError, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise LabelError(f"{url}: not the devkit: {error}; copy or fetch the file again") from error


def _member(tar: tarfile.TarFile, held: Mapping[str, tarfile.TarInfo], name: str, url: str) -> bytes:
    file = tar.extractfile(held[name]) if name in held and held[name].size <= _DEVKIT_LIMIT else None
    if file is None:
        raise LabelError(f"{url}: holds no {name}; the devkit of 2012's tasks 1 and 2 does")
    return file.read()


def _read_meta(data: bytes, url: str) -> dict[int, str]:
    """Read MATLAB's table of synsets: 1,000 that are classes, and the 860 above them."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise LabelError(f"{url}: holds a file of MATLAB's, which scipy reads; pip install scipy") from error
    try:
        synsets = np.atleast_1d(loadmat(io.BytesIO(data), squeeze_me=True)["synsets"])
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    except Exception as error:  # of all kinds, where a file is no such table
        raise LabelError(f"{url}: its meta.mat cannot be read: {' '.join(str(error).split())}") from error


def _ground_truth(
    url: str,
    lines: list[tuple[int, list[str]]],
    wordnet_ids: dict[int, str],
    devkit_ids_url: str,
    class_names: Sequence[str],
) -> dict[str, int]:
    ids = {}
    for number, [field] in lines:
        if not field.isdecimal() or int(field) not in wordnet_ids:
            raise LabelError(f"{url}, line {number}: devkit ID {field} is not in {devkit_ids_url}")
        ids[number] = int(field)
    # The devkit's table also numbers inner nodes of WordNet, which label no image: only IDs in use are classes.
    names = class_names or {wordnet_ids[devkit_id] for devkit_id in ids.values()}
    index = synset_indices(list(names))
    for devkit_id in sorted(set(ids.values())):
        if wordnet_ids[devkit_id] not in index:
            raise LabelError(f"{url}: {wordnet_ids[devkit_id]} (devkit ID {devkit_id}) is not a class of the train set")
    return {f"ILSVRC2012_val_{number:08d}.JPEG": index[wordnet_ids[devkit_id]] for number, devkit_id in ids.items()}
