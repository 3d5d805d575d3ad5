"""Writes scikit-learn's handwritten digits in the layout in which ILSVRC2012 is given out.

1,797 real images of 8x8 grey pixels, from the test set of UCI's "Optical Recognition of Handwritten Digits";
the package scikit-learn carries them, so nothing is downloaded. Out come, in a folder:

    ILSVRC2012_img_train.tar   ten inner tars, one a class: n00000003.tar holds n00000003_17.JPEG and its like
    ILSVRC2012_img_val.tar     flat: ILSVRC2012_val_00000001.JPEG and on, a quarter of each class, mixed
    val.txt                    "ILSVRC2012_val_00000001.JPEG 3": a name and the index of its class

The IDs have the form of WordNet's but are made up: their last digit is the digit in the image, so that a
class's place among the sorted IDs is the digit, too. The same seed gives the same bytes.
"""

import argparse
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SEED = 0


def write_digits(folder: Path, rng: np.random.Generator) -> tuple[int, int]:
    """Write the two tars and val.txt.

    Args:
        folder: where they go; made if it isn't there. Files of the same names are overwritten.
        rng: decides which images are held out, and their order.

    Returns:
        How many images the train tar holds, and how many the validation tar.
    """
    digits = load_digits()
    images: np.ndarray = digits.images
    labels: np.ndarray = digits.target

    folder.mkdir(parents=True, exist_ok=True)
    held_out: list[int] = []
    trained = 0
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for digit in range(10):
            members = rng.permutation(np.flatnonzero(labels == digit))
            split = len(members) // 4
            held_out.extend(members[:split])
            synset = f"n{digit:08d}"
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for number in sorted(members[split:]):
                    add(tar, f"{synset}_{number}.JPEG", jpeg(images[number]))
                    trained += 1
            add(train, f"{synset}.tar", inner.getvalue())

    lines = []
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as val:
        for place, number in enumerate(rng.permutation(held_out), start=1):
            name = f"ILSVRC2012_val_{place:08d}.JPEG"
            add(val, name, jpeg(images[number]))
            lines.append(f"{name} {labels[number]}\n")
    (folder / "val.txt").write_text("".join(lines), encoding="ascii")
    return trained, len(lines)


def jpeg(image: np.ndarray) -> bytes:
    """Encode one digit.

    Args:
        image: (8, 8) float64, whole numbers from 0 (paper) to 16 (ink).

    Returns:
        A grey JPEG of quality 100, 0 to 255.
    """
    grey = np.rint(image * (255 / 16)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "JPEG", quality=100)
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append one member, owned by nobody and dated 1970.

    Args:
        tar: open for writing.
        name: the member's name.
        data: its bytes.
    """
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def main() -> None:
    """Read the command line, write, say what was written."""
    parser = argparse.ArgumentParser(description="Write scikit-learn's digits as ILSVRC2012 is given out.")
    parser.add_argument("folder", type=Path, help="where the two tars and val.txt go")
    folder: Path = parser.parse_args().folder
    trained, held_out = write_digits(folder, np.random.default_rng(SEED))
    print(f"{folder}: {trained} images to train on, {held_out} held out, 10 classes")


if __name__ == "__main__":
    main()
