#!/usr/bin/env bash
# Passes SparkNet's tests on a machine that has nothing but a Python (and as root on Debian or Ubuntu, not even that).
# Arguments go to pytest: scripts/test.sh -m "not heavy" tests/loaders
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

set_up dev
cd "$SPARKNET_ROOT"
exec python -m pytest "$@"
