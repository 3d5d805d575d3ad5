import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark import SparkContext

from sparknet.errors import ConfigError, LabelError
from sparknet.loaders.block import Block, write_images
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.samples import Ledger
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import TrainConfig
from sparknet.train.evaluate import Scores, evaluate, score_block
from sparknet.train.net import Net
from tests.train.serial import fresh, noise_block

CONFIG = TrainConfig(net="tests.train.networks:plain", crop=11, test_batch=4, scale=1 / 64)


@pytest.fixture
def mean() -> np.ndarray:
    return np.random.default_rng(5).uniform(100, 150, (16, 16, 3)).astype(np.float32)


def plain_scores(net: Net, block: Block, mean: np.ndarray | None, crop: int, scale: float) -> Scores:
    """One image at a time, in plain numpy and torch; a place among the first five counted by hand."""
    correct = correct5 = 0
    loss = 0.0
    corner = (block.side - crop) // 2
    for image, label in zip(block.images(), block.labels, strict=True):
        pixels = image.astype(np.float32) - (0 if mean is None else mean)
        cut = pixels[corner : corner + crop, corner : corner + crop].transpose(2, 0, 1) * np.float32(scale)
        net.module.eval()
        with torch.no_grad():
            scores = net.module(torch.from_numpy(np.ascontiguousarray(cut))[None])[0].double().numpy()
        place = int((scores > scores[label]).sum())
        correct += place == 0
        correct5 += place < 5
        loss += float(np.log(np.exp(scores - scores[label]).sum()))
    return Scores(samples=len(block), correct=correct, correct5=correct5, loss=loss)


@pytest.mark.parametrize("net_name", ["plain", "dropout", "batchnorm"])
@pytest.mark.parametrize("classes", [2, 4, 5, 6, 12])
def test_scores_are_those_of_a_plain_loop(net_name: str, classes: int, mean: np.ndarray, tmp_path: Path) -> None:
    config = replace(CONFIG, net=f"tests.train.networks:{net_name}")
    block = noise_block(tmp_path, 41, classes=classes)  # ten batches of 4 and a tail of 1
    net = fresh(config, classes)
    expected = plain_scores(net, block, mean, config.crop, config.scale)
    found = score_block(net, block, mean, config)
    assert (found.samples, found.correct, found.correct5) == (41, expected.correct, expected.correct5)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.correct5 == 41 if classes <= 5 else found.correct < found.correct5 < 41


@pytest.mark.parametrize("batch", [1, 4, 40, 41, 42, 1000])
def test_the_size_of_a_batch_changes_nothing(batch: int, mean: np.ndarray, tmp_path: Path) -> None:
    block, net = noise_block(tmp_path, 41, classes=12), fresh(CONFIG, 12)
    expected = plain_scores(net, block, mean, CONFIG.crop, CONFIG.scale)
    found = score_block(net, block, mean, replace(CONFIG, test_batch=batch))
    assert (found.samples, found.correct, found.correct5) == (41, expected.correct, expected.correct5)


def test_an_empty_block_scores_nothing(tmp_path: Path) -> None:
    for views in (1, 10):
        config = replace(CONFIG, test_crops=views)
        assert score_block(fresh(CONFIG), noise_block(tmp_path, 0), None, config) == Scores()


@pytest.mark.parametrize("batch", [1, 10, 30, 1000])
@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("subtracted", ["image", "values"])
def test_of_ten_crops_the_probabilities_are_averaged(
    subtracted: str, bgr: bool, batch: int, mean: np.ndarray, tmp_path: Path
) -> None:
    block, net = noise_block(tmp_path, 41, classes=12), fresh(CONFIG, 12)
    used = mean if subtracted == "image" else mean.mean(axis=(0, 1))
    net.module.eval()
    far, centre, crop = 16 - 11, (16 - 11) // 2, 11
    correct = correct5 = 0
    loss = 0.0
    for image, label in zip(block.images(), block.labels, strict=True):
        pixels = (image.astype(np.float32) - used) * np.float32(CONFIG.scale)
        views = []
        for top, left in ((0, 0), (0, far), (far, 0), (far, far), (centre, centre)):
            view = pixels[top : top + crop, left : left + crop]
            views += [view, view[:, ::-1]]
        x = np.ascontiguousarray(np.array(views)[..., ::-1] if bgr else np.array(views)).transpose(0, 3, 1, 2)
        with torch.no_grad():
            chances = net.module(torch.from_numpy(x)).double().softmax(1).mean(0).numpy()
        place = int((chances > chances[label]).sum())
        correct, correct5, loss = correct + (place == 0), correct5 + (place < 5), loss - float(np.log(chances[label]))
    found = score_block(net, block, used, replace(CONFIG, test_crops=10, test_batch=batch, bgr=bgr))
    assert (found.samples, found.correct, found.correct5) == (41, correct, correct5)
    assert found.loss == pytest.approx(loss, rel=1e-4)


def test_scores_add_up_as_counts() -> None:
    total = Scores(samples=1, correct=1, correct5=1, loss=0.5) + Scores(samples=3, correct=0, correct5=2, loss=1.5)
    assert total == Scores(samples=4, correct=1, correct5=3, loss=2.0)
    assert (total.top1, total.top5) == (0.25, 0.75)  # a mean of means would be 0.5 and 0.83


def blocks_of(sc: SparkContext, handles: list[Block], classes: int = 12) -> Blocks:
    """Handles that are there already, as a cached set."""
    images = sum(map(len, handles))
    return Blocks(
        rdd=sc.parallelize(handles, len(handles)),
        handles=tuple(handles),
        sent=sc.broadcast(tuple(handles)),
        side=handles[0].side,
        class_names=tuple(map(str, range(classes))),
        ledger=Ledger(images, images),
        source="file:/noise",
        set_id="noise",
    )


def cut(block: Block, start: int, stop: int, folder: Path) -> Block:
    return write_images(folder / f"{start}-{stop}-{block.name}", block.images()[start:stop], block.labels[start:stop])


@pytest.mark.parametrize("bounds", [(0, 41), (0, 1, 2, 30, 41), (0, 20, 20, 41)], ids=str)
def test_through_spark_in_any_number_of_blocks(
    bounds: tuple[int, ...], sc: SparkContext, mean: np.ndarray, tmp_path: Path
) -> None:
    block, net = noise_block(tmp_path, 41, classes=12), fresh(CONFIG, 12)
    handles = [cut(block, *ends, tmp_path) for ends in itertools.pairwise(bounds)]
    broadcasts = sorted(Path(sc._temp_dir).iterdir())
    weights = net.get_weights()
    blocks = blocks_of(sc, handles)
    found = evaluate(blocks, weights, mean, replace(CONFIG, seed=9), 12)
    blocks.sent.destroy()
    expected = plain_scores(net, block, mean, CONFIG.crop, CONFIG.scale)
    assert (found.samples, found.correct, found.correct5) == (41, expected.correct, expected.correct5)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert sorted(Path(sc._temp_dir).iterdir()) == broadcasts


def test_the_tiny_sets_every_image_counts(val_blocks: Blocks) -> None:
    config = replace(CONFIG, test_batch=7)
    weights = fresh(config).get_weights()
    weights.flat[:] = 0
    weights["3.bias"][:] = [1, 0, 0]
    scores = evaluate(val_blocks, weights, None, config, 3)
    # 31 images, in turn of classes 0, 1, 2: eleven of class 0.
    assert (scores.samples, scores.correct, scores.correct5) == (31, 11, 31)
    assert scores.loss == pytest.approx(11 * np.log(1 + 2 / np.e) + 20 * np.log(2 + np.e), rel=1e-5)


def test_a_set_of_more_classes_than_the_network(sc: SparkContext, tmp_path: Path) -> None:
    blocks = blocks_of(sc, [noise_block(tmp_path, 3)], classes=4)
    with pytest.raises(LabelError, match=r"^file:/noise: 4 classes, the network has 3 outputs$"):
        evaluate(blocks, fresh(CONFIG).get_weights(), None, CONFIG, 3)


def test_a_set_of_fewer_classes_than_the_network(sc: SparkContext, tmp_path: Path) -> None:
    blocks = blocks_of(sc, [noise_block(tmp_path, 5, classes=2)], classes=2)
    assert evaluate(blocks, fresh(CONFIG).get_weights(), None, CONFIG, 3).samples == 5


def test_a_set_of_another_side_than_the_mean_or_below_the_crop(sc: SparkContext, tmp_path: Path) -> None:
    blocks = blocks_of(sc, [noise_block(tmp_path, 3, side=12)], classes=3)
    weights = fresh(CONFIG).get_weights()
    with pytest.raises(ConfigError, match="file:/noise: cached at a side of 12 pixels, the training set's is 16"):
        evaluate(blocks, weights, np.zeros((16, 16, 3), np.float32), CONFIG, 3)
    with pytest.raises(ConfigError, match="crop must be from 1 to the images' side of 12 pixels, got 13"):
        evaluate(blocks, weights, None, replace(CONFIG, crop=13), 3)


def test_weights_of_another_network(sc: SparkContext, tmp_path: Path) -> None:
    blocks = blocks_of(sc, [noise_block(tmp_path, 3)], classes=3)
    with pytest.raises(
        ConfigError, match=r"net tests\.train\.networks:plain: is not the network that these weights are of"
    ):
        evaluate(blocks, WeightCollection({"w": (3,)}), None, CONFIG, 3)
