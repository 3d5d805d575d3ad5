"""Small sets of images, made from a seed, in the layouts that people have."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SYNSETS = ("n01503061", "n02121620", "n04490091")


@dataclass(frozen=True)
class TinySet:
    """Paths of a set of three classes, and its content.

    The classes differ in colour, so that a network learns them in a few rounds. The devkit numbers them in reverse.
    """

    train: Path  # nested tar: a class an inner tar
    val: Path  # flat tar
    val_txt: Path  # 'name index' lines
    ground_truth: Path  # one devkit ID a line
    devkit_ids: Path  # 'ID WordNet-ID name' lines
    train_images: dict[str, tuple[bytes, int]]  # key -> (JPEG, class index)
    val_images: dict[str, tuple[bytes, int]]


def jpeg(seed: int, label: int, size: tuple[int, int] = (40, 32)) -> bytes:
    """A JPEG of noise, brightest in the channel of its class. Size is (width, height)."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 120, (size[1], size[0], 3))
    pixels[:, :, label % 3] += 100
    return encode(pixels.astype(np.uint8), "JPEG")


def encode(pixels: np.ndarray, format_name: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format_name)
    return out.getvalue()


def tar_bytes(members: dict[str, bytes], end_mark: bool = True) -> bytes:
    """A tar of the given members; without its end-of-archive mark where asked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    whole = out.getvalue()
    return whole if end_mark else whole[:end]


def write_tiny_set(folder: Path, per_class: int = 20, val: int = 31) -> TinySet:
    """Write the set. Class c has `per_class + c` training images; the first val images cover all classes."""
    train_images: dict[str, tuple[bytes, int]] = {}
    inner = {}
    for label, synset in enumerate(SYNSETS):
        members = {f"{synset}_{i}.JPEG": jpeg(1000 * label + i, label) for i in range(per_class + label)}
        train_images |= {f"{synset}/{name}": (data, label) for name, data in members.items()}
        inner[f"{synset}.tar"] = tar_bytes(members)
    # Inner tars out of order: the class index must come from sorting, not from place.
    train = folder / "ILSVRC2012_img_train.tar"
    train.write_bytes(tar_bytes({name: inner[name] for name in sorted(inner, reverse=True)}))
    val_images = {f"ILSVRC2012_val_{i + 1:08d}.JPEG": (jpeg(9000 + i, i % 3), i % 3) for i in range(val)}
    val_tar = folder / "ILSVRC2012_img_val.tar"
    val_tar.write_bytes(tar_bytes({name: data for name, (data, _) in val_images.items()}))
    val_txt = folder / "val.txt"
    val_txt.write_text("".join(f"{name} {label}\n" for name, (_, label) in val_images.items()))
    ground_truth = folder / "ILSVRC2012_validation_ground_truth.txt"
    ground_truth.write_text("".join(f"{3 - label}\n" for _, label in val_images.values()))
    devkit_ids = folder / "devkit_ids.txt"
    devkit_ids.write_text("".join(f"{3 - label} {SYNSETS[label]} thing {label}\n" for label in (2, 1, 0)))
    return TinySet(train, val_tar, val_txt, ground_truth, devkit_ids, train_images, val_images)
