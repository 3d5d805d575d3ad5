#!/usr/bin/env bash
# The long forms of two tests, for whoever wants to be sure: a run that is killed 50 times and must end in the bits of
# one that never was, and 5,000 rounds with a network of 40 MB, which may hold no more at their end than after 50.
# Hours on two cores. SPARKNET_KILLS and SPARKNET_LONG_RUN give other counts.
set -euo pipefail
export SPARKNET_KILLS=${SPARKNET_KILLS:-50} SPARKNET_LONG_RUN=${SPARKNET_LONG_RUN:-5000}
exec "$(dirname "${BASH_SOURCE[0]}")/test.sh" -rP \
    tests/train/test_resume.py::test_a_run_killed_again_and_again_ends_in_the_same_bits tests/train/test_leaks.py
