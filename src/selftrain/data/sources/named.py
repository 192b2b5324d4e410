"""The table of datasets by name: where each comes from, how it is read, and the paper's settings for it.

Knows nothing of splits or training. A new dataset is a row; only a new file format needs code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.corpus import Corpus, Metric
from selftrain.data.sources import built
from selftrain.data.sources.built import Built
from selftrain.data.sources.download import RemoteFile, make_ready
from selftrain.data.sources.readers import (
    ClassFolders,
    ListFiles,
    Reader,
    StlBinary,
    TorchVision,
    read_cub,
    read_digits,
    read_sun397,
)
from selftrain.errors import UserError

__all__ = ["DATASETS", "DatasetSpec"]


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset that ``data`` may name."""

    name: str
    """The name that the user types."""
    title: str
    """The full name."""
    read: Reader
    """Reads images and labels from disk."""
    files: tuple[RemoteFile, ...]
    """The files to download."""
    classes: int
    """The number of classes."""
    train: int
    """The number of labeled images in the training pool."""
    test: int
    """The number of test images."""
    unlabeled: int = 0
    """The number of unlabeled images in the training pool."""
    size: int = 224
    """Side in pixels of the inputs of the paper's network."""
    channels: int = 3
    """1 (grey) or 3 (colour)."""
    flip: bool = True
    """Whether a mirrored image keeps its class."""
    metric: Metric = "accuracy"
    """The metric that the paper reports."""
    regime: Literal["scratch", "pretrained"] = "pretrained"
    """The default: training from random weights, or from pretrained ones (frozen without a GPU)."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The paper's settings for this dataset, by regime."""
    by_hand: tuple[str, ...] = ()
    """Files and folders under the root that no server offers any more."""
    how: str = ""
    """How to get those files."""
    split: str = ""
    """Which images are for training and testing, where it is not obvious."""

    @property
    def built(self) -> Built | None:
        """The folder that is built from the files, if they are not read as they are published."""
        return self.read if isinstance(self.read, Built) else None

    @property
    def is_bundled(self) -> bool:
        """Whether it comes with the installed packages, without a download."""
        return not self.files and not self.by_hand

    @property
    def bytes(self) -> int:
        """The size of the download."""
        return sum(file.bytes for file in self.files)

    @property
    def backbone(self) -> str:
        """The paper's backbone; "" for a dataset that is not in the paper."""
        regime = "scratch" if self.regime == "scratch" else "finetune"
        return str(self.defaults.get(regime, {}).get("network.backbone", ""))

    def folder(self, root: str | os.PathLike[str] | None) -> Path:
        """Return the folder of datasets: as given, or in the cache folder."""
        return cache_root() / "datasets" if root is None else Path(root)

    def make_ready(self, root: str | os.PathLike[str] | None, reporter: Reporter) -> Path:
        """Download what is missing, build from it what is to be built, and return the folder of datasets."""
        folder = self.folder(root)
        if self.built is not None and self.built.is_ready(folder):
            return folder
        if root is not None and (self.files or self.by_hand) and not folder.is_dir():
            raise UserError(
                f"`root` {root}: the folder does not exist. Create it, and {self.name} is downloaded to it."
            )
        for path in self.by_hand:
            if not (folder / path).exists():
                raise UserError(f"{self.name}: {folder / path} does not exist and cannot be downloaded: {self.how}")
        make_ready(self.files, folder, self.name, reporter)
        if self.built is not None:
            self.built.build(folder, reporter)
        return folder

    def load(self, root: str | os.PathLike[str] | None = None, reporter: Reporter | None = None) -> Corpus:
        """Return the corpus; downloads it first if necessary."""
        folder = self.make_ready(root, reporter or Reporter(quiet=True))
        parts = self.read(folder)
        if len(parts.classes) != self.classes:
            raise UserError(
                f"{self.name}: found {len(parts.classes)} classes in {folder} instead of {self.classes}. Delete its "
                f"files there, and run again to download it again."
            )
        return Corpus(
            name=self.name,
            classes=parts.classes,
            images=parts.images,
            labels=parts.labels,
            truth=parts.labels,
            test=parts.test,
            test_labels=parts.test_labels,
            flip=self.flip,
            is_benchmark=True,
            metric=self.metric,
        )


# From random weights: FixMatch's protocol, as in the paper, with SVHN without flips and CIFAR-100 with a larger weight
# decay. Pretrained: ResNet-50 with torchvision's first ImageNet weights, by their name in timm. Tiny images are padded
# and cropped there instead of randomly resized, as in the authors' code.
RESNET50: dict[str, Any] = {"network.backbone": "resnet50.tv_in1k"}
PRETRAINED: dict[str, dict[str, Any]] = {"finetune": RESNET50}


def _scratch(backbone: str, **more: Any) -> dict[str, dict[str, Any]]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"scratch": {"network.backbone": backbone, **named}, "finetune": {**RESNET50, "data.crop": "pad"}}


OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
TORONTO = "https://www.cs.toronto.edu/~kriz"
CALTECH = "https://data.caltech.edu/records"
PRINCETON = "https://vision.princeton.edu/projects/2010/SUN"
STANFORD = "http://ufldl.stanford.edu/housenumbers"

# The list published at https://www.robots.ox.ac.uk/~vgg/data/flowers/102, in the order of the labels.
FLOWERS = """
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon orchid,
bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, yellow iris,
globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, pincushion flower,
fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke,
sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya,
cape flower, great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia,
bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula,
sunflower, pelargonium, bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia?, cautleya spicata,
japanese anemone, black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris,
windflower, tree poppy, gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily,
anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress,
canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican petunia, bromelia,
blanket flower, trumpet creeper, blackberry lily
"""

CIFAR10 = RemoteFile(
    f"{TORONTO}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a", 170498071, ("cifar-10-batches-py",)
)
CALTECH101 = RemoteFile(
    f"{CALTECH}/mzrjq-6wc02/files/caltech-101.zip", "md5:3138e1922a9193bfa496528edbbc45d0", 137414764,
    ("caltech101/101_ObjectCategories",), into="caltech101", inner="caltech-101/101_ObjectCategories.tar.gz",
)  # fmt: skip
UCMERCED = RemoteFile(
    "http://weegee.vision.ucmerced.edu/datasets/UCMerced_LandUse.zip", "md5:5b7ec56793786b6dc8a908e8854ac0e4",
    332468434, ("UCMerced_LandUse",),
)  # fmt: skip
GTSRB = RemoteFile(
    "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/GTSRB-Training_fixed.zip",
    "md5:513f3c79a4c5141765e10e952eaa2478", 187490228, ("GTSRB_original/GTSRB",), into="GTSRB_original",
)  # fmt: skip
# The folders behind our tables. Hashes are those of our copies.
CIFAR10_MINI = Built(
    "cifar10-mini", built.cifar10_mini, 14000, "07f4444254e2b057ce8ac2c6262233892a2e5b12fe661cf387b42506e7df469d"
)
UCMERCED_FOLDER = Built(
    "ucmerced", built.ucmerced, 2100, "56ed8d6785e2aeb864a994ad559b523d9eb4eb3a2a213699c31daf1d2afefcb3", quality=75
)
CALTECH101_MINI = Built(
    "caltech101-mini", built.caltech101_mini, 8709, "13a2f14f05d7f776851b8d0990452cacd5a03cd0b068cf37b7a249698bfc0de5",
    quality=80,
)  # fmt: skip
GTSRB_FOLDER = Built("gtsrb", built.gtsrb, 5327, "e32ac5bc07c4d684ece56c15298f66d4e260e6e252f6ffd59ed79441c58b095e")

DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            "digits", "digits of scikit-learn", read_digits, (), 10, 1438, 359,
            size=8, channels=1, flip=False, regime="scratch",
            split="a fifth of each class is for testing",
        ),
        DatasetSpec(
            "cifar10", "CIFAR-10", TorchVision("CIFAR10", ({"train": True},), ({"train": False},)),
            (CIFAR10,), 10, 50000, 10000, size=32, regime="scratch", defaults=_scratch("wrn-28-2"),
        ),
        DatasetSpec(
            "cifar100", "CIFAR-100", TorchVision("CIFAR100", ({"train": True},), ({"train": False},)),
            (RemoteFile(f"{TORONTO}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85", 169001437,
                        ("cifar-100-python",)),),
            100, 50000, 10000, size=32, regime="scratch", defaults=_scratch("wrn-28-8", optim__weight_decay=1e-3),
        ),
        DatasetSpec(
            "svhn", "SVHN",
            TorchVision("SVHN", ({"split": "train"},), ({"split": "test"},), classes=tuple("0123456789")),
            (RemoteFile(f"{STANFORD}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", 182040794,
                        ("train_32x32.mat",)),
             RemoteFile(f"{STANFORD}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", 64275384,
                        ("test_32x32.mat",))),
            10, 73257, 26032, size=32, flip=False, regime="scratch", defaults=_scratch("wrn-28-2"),
            split="without its 'extra' part",
        ),
        DatasetSpec(
            "stl10", "STL-10", StlBinary("stl10_binary"),
            (RemoteFile("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                        "md5:91f7769df0f17e558f3565bffb0c7dfb", 2640397119, ("stl10_binary",)),),
            10, 5000, 8000, 100000, size=96, regime="scratch", defaults=_scratch("wrn-37-2"),
            split="the 100,000 unlabeled images are in the pool",
        ),
        DatasetSpec(
            "caltech101", "Caltech-101", ClassFolders("caltech101/101_ObjectCategories", train_per_class=30),
            (CALTECH101,), 102, 3060, 6084, metric="mean_per_class", defaults=PRETRAINED,
            split="30 per class by a fixed rule, the others for testing; background is a class",
        ),
        DatasetSpec(
            "food101", "Food-101",
            TorchVision("Food101", ({"split": "train"},), ({"split": "test"},), "food-101/images"),
            (RemoteFile("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz", "md5:85eeb15f3717b99a5da872d97d918f87",
                        4996278331, ("food-101",)),),
            101, 75750, 25250, defaults=PRETRAINED,
        ),
        DatasetSpec(
            "cub200", "CUB-200-2011", ListFiles("CUB_200_2011/images", read_cub),
            (RemoteFile(f"{CALTECH}/65de6-vp158/files/CUB_200_2011.tgz", "md5:97eceeb196236b17998738112f37df78",
                        1150585339, ("CUB_200_2011",)),),
            200, 5994, 5794, defaults=PRETRAINED,
        ),
        DatasetSpec(
            "cars", "Stanford Cars",
            TorchVision("StanfordCars", ({"split": "train"},), ({"split": "test"},), "stanford_cars"),
            (), 196, 8144, 8041, defaults=PRETRAINED,
            by_hand=("stanford_cars/devkit", "stanford_cars/cars_train", "stanford_cars/cars_test",
                     "stanford_cars/cars_test_annos_withlabels.mat"),
            how="its server no longer exists. Get cars_train, cars_test, devkit and cars_test_annos_withlabels.mat as "
                "described at https://github.com/pytorch/vision/issues/7545, and put them there.",
        ),
        DatasetSpec(
            "aircraft", "FGVC Aircraft",
            TorchVision("FGVCAircraft", ({"split": "trainval"},), ({"split": "test"},),
                        "fgvc-aircraft-2013b/data/images"),
            (RemoteFile(f"{OXFORD}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
                        "md5:d4acdd33327262359767eeaa97a4f732", 2753340328, ("fgvc-aircraft-2013b",)),),
            100, 6667, 3333, metric="mean_per_class", defaults=PRETRAINED,
            split="variants; train and validation are the pool",
        ),
        DatasetSpec(
            "pets", "Oxford-IIIT Pets",
            TorchVision("OxfordIIITPet", ({"split": "trainval"},), ({"split": "test"},), "oxford-iiit-pet/images"),
            (RemoteFile(f"{OXFORD}/pets/data/images.tar.gz", "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c", 791918971,
                        ("oxford-iiit-pet/images",), into="oxford-iiit-pet"),
             RemoteFile(f"{OXFORD}/pets/data/annotations.tar.gz", "md5:95a8c909bbe2e81eed6a22bccdf3f68f", 19173078,
                        ("oxford-iiit-pet/annotations",), into="oxford-iiit-pet")),
            37, 3680, 3669, metric="mean_per_class", defaults=PRETRAINED,
            split="train and validation are the pool",
        ),
        DatasetSpec(
            "flowers102", "Oxford Flowers-102",
            TorchVision("Flowers102", ({"split": "train"}, {"split": "val"}), ({"split": "test"},), "flowers-102/jpg",
                        classes=tuple(name.strip() for name in FLOWERS.replace("\n", " ").split(","))),
            (RemoteFile(f"{OXFORD}/flowers/102/102flowers.tgz", "md5:52808999861908f626f3c1f4e79d11fa", 344862509,
                        ("flowers-102/jpg",), into="flowers-102"),
             RemoteFile(f"{OXFORD}/flowers/102/imagelabels.mat", "md5:e0620be6f572b9609742df49c70aed4d", 502,
                        ("flowers-102/imagelabels.mat",), into="flowers-102"),
             RemoteFile(f"{OXFORD}/flowers/102/setid.mat", "md5:a5357ecc9cb78c4bef273ce3793fc85c", 14989,
                        ("flowers-102/setid.mat",), into="flowers-102")),
            102, 2040, 6149, metric="mean_per_class", defaults=PRETRAINED,
            split="train and validation are the pool",
        ),
        DatasetSpec(
            "dtd", "DTD",
            TorchVision("DTD", ({"split": "train"}, {"split": "val"}), ({"split": "test"},), "dtd/dtd/images"),
            (RemoteFile(f"{OXFORD}/dtd/download/dtd-r1.0.1.tar.gz", "md5:fff73e5086ae6bdbea199a49dfb8a4c1", 625239812,
                        ("dtd/dtd",), into="dtd"),),
            47, 3760, 1880, defaults=PRETRAINED,
            split="split 1 of 10; train and validation are the pool",
        ),
        DatasetSpec(
            "sun397", "SUN397", ListFiles("SUN397", read_sun397),
            (RemoteFile(f"{PRINCETON}/download/Partitions.zip",
                        "sha256:e3311ea5f812d4cc6faef194688343d1111f6cd6f70f2c62f393c2b8d6ba1ec9", 18293705,
                        ("SUN397_partitions/Training_01.txt", "SUN397_partitions/Testing_01.txt"),
                        into="SUN397_partitions"),
             RemoteFile(f"{PRINCETON}/SUN397.tar.gz", "md5:8ca2778205c41d23104230ba66911c7a", 39077296924,
                        ("SUN397",))),
            397, 19850, 19850, defaults=PRETRAINED,
            split="partition 1 of 10: 50 per class for training and 50 for testing",
        ),
        DatasetSpec(
            "cifar10-mini", "CIFAR-10, part of it", CIFAR10_MINI, (CIFAR10,), 10, 10000, 4000, size=32,
            split="1,000 train and 400 test images per class, from a list",
        ),
        DatasetSpec(
            "ucmerced", "UC Merced Land Use", UCMERCED_FOLDER, (UCMERCED,), 21, 1680, 420, size=256,
            split="20 images per class for testing, from a list",
        ),
        DatasetSpec(
            "caltech101-mini", "Caltech-101, smaller images", CALTECH101_MINI, (CALTECH101,), 100, 6643, 1599, size=136,
            split="a fifth for testing, by a hash of their names; without Faces; the background is the folder junk",
        ),
        DatasetSpec(
            "gtsrb", "German traffic signs, every fifth frame", GTSRB_FOLDER, (GTSRB,), 43, 4373, 954, size=64,
            flip=False, split="a fifth of the tracks for testing, by a hash of their names",
        ),
    )
}  # fmt: skip
"""Datasets by name."""
