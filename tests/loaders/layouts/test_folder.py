from pathlib import Path
from typing import Any

import pytest

from sparknet.errors import SourceError
from sparknet.loaders.layouts import folder, plan_source
from sparknet.loaders.layouts.plan import Plan, Sample

FILES = {
    "cats/a.jpg": b"a",
    "cats/deep/b.PNG": b"bb",
    "cats/no image.txt": b"counts, and is bad",
    "cats/.DS_Store": b"is litter",
    "cats/Thumbs.db": b"is too",
    "Dogs/c.jpeg": b"",
    "dogs/d.webp": b"d",
}


def write(root: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return str(root)


def read(plan: Plan[Any]) -> list[Sample]:
    return [sample for part in plan.parts for sample in plan.read(part)]


@pytest.mark.parametrize("end", ["", "/"])
def test_folders_are_classes_and_hold_every_file(tmp_path: Path, end: str) -> None:
    url = write(tmp_path, FILES)
    plan = plan_source(url + end)
    assert (plan.layout, plan.class_names) == ("folder", ("Dogs", "cats", "dogs"))
    names = ["Dogs/c.jpeg", "cats/a.jpg", "cats/deep/b.PNG", "cats/no image.txt", "dogs/d.webp"]
    assert read(plan) == [
        Sample(name, FILES[name], label, f"{url}/{name}", 0) for name, label in zip(names, (0, 1, 1, 1, 2), strict=True)
    ]
    assert [part.samples for part in plan.parts] == [5]


def test_images_in_one_folder_have_no_classes(tmp_path: Path) -> None:
    plan = plan_source(write(tmp_path, {"b.jpg": b"b", "a.jpg": b"a"}))
    assert (plan.layout, plan.class_names, plan.labelled) == ("folder", (), False)
    assert [(sample.key, sample.label) for sample in read(plan)] == [("a.jpg", None), ("b.jpg", None)]


def test_parts_are_cut_by_size_and_hold_every_file_once(tmp_path: Path) -> None:
    url = write(tmp_path, {f"{c}/{i:03d}.jpg": bytes(100 * i) for c in "xy" for i in range(40)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "part_bytes", lambda total: total // 10)
        plan = plan_source(url)
    assert 8 <= len(plan.parts) <= 10
    assert [sample.key for sample in read(plan)] == [f"{c}/{i:03d}.jpg" for c in "xy" for i in range(40)]
    assert sum(part.length for part in plan.parts) == 2 * 100 * sum(range(40))
    assert [part.samples for part in plan.parts] == [len(part.images) for part in plan.parts]


def test_a_folder_of_sets_is_refused(tmp_path: Path) -> None:
    url = write(tmp_path, {"train/cats/a.jpg": b"a", "val/cats/b.jpg": b"b"})
    with pytest.raises(SourceError, match=rf"^{url}: holds sets \(train, val\); name one: {url}/train$"):
        plan_source(url)
    assert plan_source(f"{url}/train").class_names == ("cats",)


def test_an_image_beside_the_classes_is_refused(tmp_path: Path) -> None:
    url = write(tmp_path, {"cats/a.jpg": b"a", "b.jpg": b"b"})
    with pytest.raises(SourceError, match=rf"^{url}: b\.jpg lies beside folders of classes \(cats, \.\.\.\)"):
        plan_source(url)


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    plan = plan_source(write(tmp_path, {"cats/a.jpg": b"abc"}))
    (tmp_path / "cats" / "a.jpg").write_bytes(b"ab")
    with pytest.raises(SourceError, match=rf"^{tmp_path}/cats/a\.jpg: short read at offset 0"):
        read(plan)
