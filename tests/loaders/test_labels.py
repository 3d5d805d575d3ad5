import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from sparknet.errors import LabelError, SourceError
from sparknet.loaders.labels import read_labels, synset_indices
from tests.sets import SYNSETS, TinySet, tar_bytes

# As in ILSVRC2012's meta.mat: leaves in an order of their own, then inner nodes, which label no image.
DEVKIT = """\
1 n02119789 kit_fox
2 n02100735 English_setter
3 n02110185 Siberian_husky

4 n02096294 Australian terrier
5 n00001740 entity
6 n02083346 canine, canid
"""
TRUTH = (2, 1, 4, 3, 1, 2)
# Sorted: n02096294 (4), n02100735 (2), n02110185 (3), n02119789 (1).
CLASS_OF = {4: 0, 2: 1, 3: 2, 1: 3}


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.fixture
def devkit(tmp_path: Path) -> tuple[str, str]:
    """Paths of a ground truth, and of the table of IDs."""
    return write(tmp_path, "truth.txt", "".join(f"{i}\n" for i in TRUTH)), write(tmp_path, "ids.txt", DEVKIT)


def test_classes_are_numbered_in_sorted_order() -> None:
    assert synset_indices(["n02", "n10", "n01"]) == {"n01": 0, "n02": 1, "n10": 2}
    assert synset_indices([]) == {}


@given(st.lists(st.text(max_size=4), unique=True))
def test_the_numbers_do_not_follow_from_the_order_they_come_in(names: list[str]) -> None:
    assert synset_indices(names) == synset_indices(names[::-1])
    assert [*synset_indices(names)] == sorted(names)
    assert [*synset_indices(names).values()] == [*range(len(names))]


def test_a_class_that_occurs_twice_is_named() -> None:
    with pytest.raises(LabelError, match=r"^class n02 occurs twice"):
        synset_indices(["n02", "n01", "n02"])


def test_named_lines(tmp_path: Path) -> None:
    url = write(tmp_path, "val.txt", "b.JPEG 3\n\n  n01/a.JPEG\t0 \r\nwith blanks.JPEG  1\n")
    labels = read_labels(url)
    assert labels.by_key == {"b.JPEG": 3, "n01/a.JPEG": 0, "with blanks.JPEG": 1}
    assert labels.classes == 4
    assert labels.url == url
    assert read_labels(url, class_names=tuple("abcdef")).classes == 6


def test_the_same_labels_from_val_txt_and_from_the_devkit(tiny: TinySet) -> None:
    expected = {key: label for key, (_, label) in tiny.val_images.items()}
    for names in ((), SYNSETS):
        for url, ids in ((tiny.val_txt, None), (tiny.ground_truth, str(tiny.devkit_ids))):
            labels = read_labels(str(url), ids, names)
            assert labels.by_key == expected
            assert labels.classes == 3


def test_devkit_order_is_not_class_order(devkit: tuple[str, str]) -> None:
    labels = read_labels(*devkit)
    assert labels.by_key == {val_name(i): CLASS_OF[devkit_id] for i, devkit_id in enumerate(TRUTH, 1)}
    assert labels.classes == 4


def test_inner_nodes_of_wordnet_are_no_classes(devkit: tuple[str, str]) -> None:
    """n00001740 and n02083346 sort before the leaves: counted, they would shift every class."""
    names = ("n02096294", "n02100735", "n02110185", "n02119789")
    assert read_labels(*devkit, class_names=names) == read_labels(*devkit)


def test_classes_of_the_train_set_count_though_no_image_here_is_of_them(devkit: tuple[str, str]) -> None:
    names = ("n01440764", "n02096294", "n02100735", "n02110185", "n02119789", "n15075141")
    labels = read_labels(*devkit, class_names=names)
    assert labels.by_key == {val_name(i): CLASS_OF[devkit_id] + 1 for i, devkit_id in enumerate(TRUTH, 1)}
    assert labels.classes == 6


def test_a_class_that_the_train_set_lacks_is_named(devkit: tuple[str, str]) -> None:
    with pytest.raises(LabelError) as raised:
        read_labels(*devkit, class_names=("n02096294", "n02100735", "n02110185"))
    assert str(raised.value) == f"{devkit[0]}: n02119789 (devkit ID 1) is not a class of the train set"


def test_a_line_of_the_ground_truth_is_the_image_of_its_number(tmp_path: Path, devkit: tuple[str, str]) -> None:
    url = write(tmp_path, "gap.txt", "2\n\n4\n")
    assert read_labels(url, devkit[1]).by_key == {val_name(1): 1, val_name(3): 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{url}: no label in it; a label file holds a line an image"),
        ("\n \n", "{url}: no label in it; a label file holds a line an image"),
        ("a 0\nb\n", "{url}, line 2: 'name index' expected, got 'b'"),
        ("a 0\n\nb one\n", "{url}, line 3: 'name index' expected, got 'b one'"),
        ("a 0\nb -1\n", "{url}, line 2: 'name index' expected, got 'b -1'"),
        ("a 0\nb 1.0\n", "{url}, line 2: 'name index' expected, got 'b 1.0'"),
        ("a,0\nb,1\n", "{url}, line 1: 'name index' expected, got 'a,0'"),
        ("1\n2\n", "{url}: one field a line is the devkit's ground truth, whose IDs are not class indices; "),
        ("a 0\nb 1\na 1\n", "{url}, line 3: a is labelled twice"),
        ("a 0\na 0\n", "{url}, line 2: a is labelled twice"),
        ("a 0\nb 3\n", "{url}: b has class 3, but there are 3 classes (0 to 2)"),
    ],
)
def test_wrong_label_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    url = write(tmp_path, "val.txt", text)
    with pytest.raises(LabelError) as raised:
        read_labels(url, class_names=SYNSETS)
    assert str(raised.value).startswith(message.format(url=url))


@pytest.mark.parametrize(
    ("truth", "ids", "message"),
    [
        ("1\n9\n", "1 n01\n", "{truth}, line 2: devkit ID 9 is not in {ids}"),
        ("1\n0\n", "1 n01\n", "{truth}, line 2: devkit ID 0 is not in {ids}"),
        ("1\nn01\n", "1 n01\n", "{truth}, line 2: devkit ID n01 is not in {ids}"),
        ("1\n", "1 n01\n1 n02\n", "{ids}, line 2: ID 1 occurs twice"),
        ("1\n", "1 n01\n2\n", "{ids}, line 2: 'ID WordNet-ID' expected, got '2'"),
        ("1\n", "n01 1\n", "{ids}, line 1: 'ID WordNet-ID' expected, got 'n01 1'"),
        ("1\n2\n", "1 n01\n2 n01\n", ""),
    ],
)
def test_wrong_devkits_are_named(tmp_path: Path, truth: str, ids: str, message: str) -> None:
    truth_url, ids_url = write(tmp_path, "truth.txt", truth), write(tmp_path, "ids.txt", ids)
    if not message:
        assert read_labels(truth_url, ids_url).by_key == {val_name(1): 0, val_name(2): 0}
        return
    with pytest.raises(LabelError) as raised:
        read_labels(truth_url, ids_url)
    assert str(raised.value) == message.format(truth=truth_url, ids=ids_url)


def test_a_label_file_that_is_not_there_is_named(tmp_path: Path, devkit: tuple[str, str]) -> None:
    with pytest.raises(SourceError, match=f"^{tmp_path}/none.txt: no such file"):
        read_labels(f"{tmp_path}/none.txt")
    with pytest.raises(SourceError, match=f"^{tmp_path}/none.txt: no such file"):
        read_labels(devkit[0], f"{tmp_path}/none.txt")


def test_all_of_cifar10(cifar10: Path) -> None:
    names = sorted(line.split()[0] for line in (cifar10 / "synsets.txt").read_text().splitlines())
    named = read_labels(str(cifar10 / "val.txt"))
    truth = cifar10 / "ILSVRC2012_validation_ground_truth.txt"
    assert len(named.by_key) == 10_000
    assert named.classes == 10
    assert read_labels(str(truth), str(cifar10 / "devkit_ids.txt"), names).by_key == named.by_key


def write_devkit(folder: Path, truth: str, ids: dict[int, str] | None, name: str = "devkit.tar.gz") -> str:
    """The devkit as it is given out, with a table of synsets in MATLAB's form."""
    out = io.BytesIO()
    if ids is not None:
        fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
        rows = [[(np.float64(number), synset, "thing, or so", np.uint8(0))] for number, synset in ids.items()]
        savemat(out, {"synsets": np.array(rows, dtype=fields)})
    members = {
        "ILSVRC2012_devkit_t12/readme.txt": b"read me",
        "ILSVRC2012_devkit_t12/data/meta.mat": out.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }
    path = folder / name
    path.write_bytes(gzip.compress(tar_bytes(members)))
    return str(path)


@pytest.mark.parametrize("known", [True, False])
def test_the_devkit_s_tar_is_a_label_file(tmp_path: Path, tiny: TinySet, known: bool) -> None:
    names = SYNSETS if known else ()
    ids = {3 - label: synset for label, synset in enumerate(SYNSETS)} | {4: "n00001740", 5: "n00001930"}
    labels = read_labels(write_devkit(tmp_path, tiny.ground_truth.read_text(), ids), class_names=names)
    expected = read_labels(str(tiny.ground_truth), str(tiny.devkit_ids), names)
    assert (labels.by_key, labels.classes) == (expected.by_key, expected.classes)


def test_a_devkit_of_one_class(tmp_path: Path) -> None:
    labels = read_labels(write_devkit(tmp_path, "7\n7\n", {7: "n01440764"}))
    assert labels.by_key == {val_name(1): 0, val_name(2): 0}


@pytest.mark.parametrize(
    ("truth", "ids", "message"),
    [
        ("1\n9\n", {1: "n01440764"}, ", line 2: devkit ID 9 is not in its meta.mat"),
        ("1\n", None, ": its meta.mat cannot be read: "),
        ("ü\n", {1: "n01440764"}, ": not the devkit: 'ascii' codec"),
    ],
)
def test_a_damaged_devkit_is_named(tmp_path: Path, truth: str, ids: dict[int, str] | None, message: str) -> None:
    url = write_devkit(tmp_path, truth, ids)
    with pytest.raises(LabelError, match=f"^{re.escape(url + message)}"):
        read_labels(url)


def test_what_is_no_devkit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(b"404: Not Found")
    with pytest.raises(LabelError, match=rf"^{path}: not the devkit: .*; copy or fetch the file again$"):
        read_labels(str(path))
    path.write_bytes(gzip.compress(tar_bytes({"a": b"1"})))
    with pytest.raises(LabelError, match=rf"^{path}: holds no ILSVRC2012_validation_ground_truth\.txt; the devkit of"):
        read_labels(str(path))
    whole = write_devkit(tmp_path, "1\n", {1: "n01440764"})
    path.write_bytes(Path(whole).read_bytes()[:-40])
    with pytest.raises(LabelError, match=rf"^{path}: not the devkit: "):
        read_labels(str(path))
