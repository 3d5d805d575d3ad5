"""ImageNet as Kaggle gives it out: ILSVRC/Data/CLS-LOC/{train,val,test}, LOC_synset_mapping.txt, LOC_val_solution.csv.

The folder `train` holds a folder a class; `val` all images, whose classes LOC_val_solution.csv tells, four folders
above. Classes are the WordNet IDs of LOC_synset_mapping.txt, sorted.
"""

import re

from sparknet.errors import LabelError, SourceError
from sparknet.loaders.labels import read_solution, synset_indices
from sparknet.loaders.layouts import folder
from sparknet.loaders.layouts.plan import Plan
from sparknet.loaders.source import Listing, exists, read_text

_SET = re.compile(r"(?P<base>.*)/ILSVRC/Data/CLS-LOC/(?P<name>train|val|test)")
_MAPPING, _SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"


def plan(listing: Listing) -> Plan[folder.Images] | None:
    """Recognise one of the folders train, val and test.

    Raises:
        SourceError: the folder above them was named.
        LabelError: the folders of `train`, or the classes in LOC_val_solution.csv, are not those of the mapping.
    """
    if listing.root is None:
        return None
    if any(listing.path(file) == _MAPPING for file in listing.files):
        raise SourceError(
            f"{listing.url}: holds sets; name one: {listing.url.rstrip('/')}/ILSVRC/Data/CLS-LOC/train, or .../val"
        )
    found = _SET.fullmatch(listing.root)
    if found is None:
        return None
    base, name = found["base"], found["name"]
    mapping = f"{base}/{_MAPPING}"
    images = folder.plan(listing)
    if images is None or name == "test" or not exists(mapping):
        return images
    names = tuple(synset_indices([line.split()[0] for line in read_text(mapping).splitlines() if line.strip()]))
    if name == "train":
        if images.class_names != names:
            other = min(set(names) ^ set(images.class_names))
            where = "has no folder" if other in names else f"is not in {mapping}"
            raise LabelError(f"{listing.url}: class {other} {where}; with --layout folder, its folders are the classes")
        return Plan(layout="kaggle", parts=images.parts, read=images.read, class_names=names)
    labels = read_solution(f"{base}/{_SOLUTION}", names)
    labelled = [image._replace(label=labels.get(image.key)) for part in images.parts for image in part.images]
    return Plan(layout="kaggle", parts=folder.group(labelled), read=images.read, class_names=names)
