#!/usr/bin/env bash
# The main job, from nothing: sets up, writes a small set of real images as ImageNet's tars, trains lenet on them
# with two workers inside Spark, and says how well it reads digits that it has not seen. Minutes on two cores.
#
# SPARKNET_SCRATCH names the folder for data and run; without it a new temporary one is made. It is kept.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

set_up quickstart

scratch=${SPARKNET_SCRATCH:-$(mktemp -d "${TMPDIR:-/tmp}/sparknet-quickstart-XXXXXX")}
mkdir -p "$scratch" || die "SPARKNET_SCRATCH=$scratch cannot be made: name a folder that you may write to"
scratch=$(cd "$scratch" && pwd -P)
data=$scratch/data
run=$scratch/run-$(date +%Y%m%d-%H%M%S)

say "writing the handwritten digits as ImageNet's tars ..."
python "$SPARKNET_ROOT/scripts/make_digits.py" "$data" >&2

say "training lenet with two workers, 10 iterations a round (a minute or two) ..."
sparknet train "$data/ILSVRC2012_img_train.tar" \
    --val "$data/ILSVRC2012_img_val.tar" --val-labels "$data/val.txt" \
    --net lenet --side 28 --crop 28 --workers 2 --tau 10 --rounds 40 \
    --master "local[2,4]" --out "$run" --json | tail -n 1 >"$scratch/result.json"

python - "$scratch/result.json" <<'PYTHON'
import json, sys
with open(sys.argv[1]) as file:
    result = json.load(file)
print(
    f"\nTop-1 accuracy on the held-out digits: {result['top1']:.1%} "
    f"({result['rounds']} rounds, {result['images']} images in {result['seconds']:.0f} s, "
    f"{result['images_per_s']:.0f} images/s)."
)
PYTHON
cat <<END
The run's files: $run
The images it saw: $data (both stay; remove $scratch when you are done)

To train on ImageNet as it is given out (/data may be a folder or, with the extras s3 and hdfs, a URL):

    . "$SPARKNET_VENV/bin/activate"
    sparknet train /data/ILSVRC2012_img_train.tar \\
        --val /data/ILSVRC2012_img_val.tar --val-labels /data/val.txt \\
        --net cifar10_quick --side 32 --crop 32 --workers 2 --tau 10 --rounds 400 --out my-run

That is a small network on small images. For one of your own, on large ones: --net MODULE:FUNCTION --side 256
--crop 227, where FUNCTION(classes, crop) in MODULE.py returns a torch.nn.Module.
END
