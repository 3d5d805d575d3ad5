from pathlib import Path

import pytest

from sparknet.errors import LabelError, SourceError
from sparknet.loaders.labels import read_labels
from sparknet.loaders.layouts import plan_source
from tests.loaders.layouts.test_folder import read, write

A, B, C = "n01440764", "n01443537", "n02084071"
VAL = {f"ILSVRC2012_val_{i:08d}": synset for i, synset in enumerate((C, A, B, C), 1)}
SOLUTION = "ImageId,PredictionString\n" + "".join(
    f"{image},{synset} 1 2 3 4 {synset} 5 6 7 8 \n" for image, synset in VAL.items()
)
SETS = "ILSVRC/Data/CLS-LOC"
FILES = {
    f"{SETS}/train/{C}/{C}_1.JPEG": b"c",
    f"{SETS}/train/{A}/{A}_7.JPEG": b"a",
    f"{SETS}/train/{B}/{B}_3.JPEG": b"b",
    **{f"{SETS}/val/{image}.JPEG": image.encode() for image in VAL},
    f"{SETS}/test/ILSVRC2012_test_00000001.JPEG": b"t",
    "LOC_synset_mapping.txt": f"{C} dog, domestic dog\n{A} tench\n{B} goldfish\n".encode(),
    "LOC_val_solution.csv": SOLUTION.encode(),
}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return write(tmp_path, FILES)


def test_the_training_set(root: str) -> None:
    plan = plan_source(f"{root}/{SETS}/train")
    assert (plan.layout, plan.class_names) == ("kaggle", (A, B, C))
    assert [(sample.key, sample.data, sample.label) for sample in read(plan)] == [
        (f"{A}/{A}_7.JPEG", b"a", 0),
        (f"{B}/{B}_3.JPEG", b"b", 1),
        (f"{C}/{C}_1.JPEG", b"c", 2),
    ]


def test_the_validation_set_has_its_classes_from_the_solution(root: str) -> None:
    plan = plan_source(f"{root}/{SETS}/val/")
    assert (plan.layout, plan.class_names) == ("kaggle", (A, B, C))
    assert [sample.label for sample in read(plan)] == [2, 0, 1, 2]


def test_an_image_that_the_solution_does_not_name_has_no_label(root: str) -> None:
    write(Path(root), {f"{SETS}/val/other.JPEG": b"x"})
    assert [sample.label for sample in read(plan_source(f"{root}/{SETS}/val"))] == [2, 0, 1, 2, None]


def test_the_test_set_has_no_labels(root: str) -> None:
    plan = plan_source(f"{root}/{SETS}/test")
    assert (plan.layout, plan.labelled, [sample.label for sample in read(plan)]) == ("folder", False, [None])


def test_without_the_files_above_it_is_a_folder(root: str) -> None:
    (Path(root) / "LOC_synset_mapping.txt").unlink()
    assert plan_source(f"{root}/{SETS}/train").layout == "folder"


def test_the_folder_above_is_refused(root: str) -> None:
    with pytest.raises(SourceError, match=f"^{root}: holds sets; name one: {root}/{SETS}/train, or ...{'/val$'}"):
        plan_source(root)


@pytest.mark.parametrize("more", [True, False])
def test_folders_that_are_not_the_classes_are_refused(root: str, more: bool) -> None:
    if more:
        write(Path(root), {f"{SETS}/train/n00000001/x.JPEG": b"x"})
        message = rf"class n00000001 is not in {root}/LOC_synset_mapping\.txt"
    else:
        (Path(root) / SETS / "train" / A / f"{A}_7.JPEG").unlink()
        message = f"class {A} has no folder"
    with pytest.raises(LabelError, match=f"{message}; with --layout folder, its folders are the classes$"):
        plan_source(f"{root}/{SETS}/train")
    assert plan_source(f"{root}/{SETS}/train", "folder").layout == "folder"


def test_the_solution_is_a_label_file_too(root: str) -> None:
    labels = read_labels(f"{root}/LOC_val_solution.csv", class_names=(A, B, C))
    assert labels.by_key == {f"{image}.JPEG": (A, B, C).index(synset) for image, synset in VAL.items()}
    assert labels.classes == 3
    assert read_labels(f"{root}/LOC_val_solution.csv").by_key == labels.by_key


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ILSVRC2012_val_00000009,", ", line 6: 'image,WordNet-ID x y x y' expected, got 'ILSVRC2012_val_00000009,'"),
        ("x", ", line 6: 'image,WordNet-ID x y x y' expected, got 'x'"),
        (f"ILSVRC2012_val_00000001,{A} 1 2 3 4", ", line 6: ILSVRC2012_val_00000001 is labelled twice"),
        ("x,n00000001 1 2 3 4", ": x is of n00000001, which is not a class of the train set"),
    ],
)
def test_a_solution_that_cannot_be_read(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(f"{SOLUTION}{line}\n")
    with pytest.raises(LabelError) as raised:
        read_labels(str(path), class_names=(A, B, C))
    assert str(raised.value) == f"{path}{message}"
