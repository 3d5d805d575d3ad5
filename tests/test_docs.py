"""Every example of README.md and docs/ is run, in the order of its page, on a small set with the files' real names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.sets import TinySet, write_tiny_set

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in FENCE.finditer(page.read_text())]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TinySet:
    """As many images as two minibatches of the networks that come with SparkNet need."""
    return write_tiny_set(tmp_path_factory.mktemp("small"), per_class=70)


@pytest.mark.heavy
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_examples_run(
    page: Path, small: TinySet, sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (small.train, small.val, small.val_txt, small.ground_truth, small.devkit_ids):
        shutil.copy(path, tmp_path)
    for key, (data, _) in small.train_images.items():
        for folder in ("photos", "photos-val"):
            (tmp_path / folder / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / key).write_bytes(data)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, object] = {}
    for language, text in blocks(page):
        if text.startswith("# mynet.py"):
            (tmp_path / "mynet.py").write_text(text)
        elif language == "python":
            exec(compile(text, page.name, "exec"), namespace)
        elif language == "bash":
            run_shell(text, tmp_path)
        else:
            pytest.fail(f"{page.name}: a fenced block is python or bash, so that it can be run; got {language!r}")


def run_shell(text: str, folder: Path) -> None:
    # The pages show runs that are worth their while; three rounds show that the command works.
    brief = re.sub(r"--turns \d+", "--turns 1", re.sub(r"--rounds \d+", "--rounds 3", text))
    brief = brief.replace("bench minibatch", "bench minibatch --images 512 --turns 1 --seconds 0.1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", brief],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{brief}\n{done.stdout}\n{done.stderr[-3000:]}"


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
