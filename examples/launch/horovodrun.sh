#!/usr/bin/env bash
# Starts ranks with horovodrun and Gloo: on this machine, or on several over ssh.
#
#   examples/launch/horovodrun.sh -np 4 -- python -m examples.keras_digits
#   examples/launch/horovodrun.sh --hostfile hosts --dry-run -- python -m examples.keras_digits
#
# The hosts need ssh without a password, and this folder and Python under the same paths.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse_options "$@"
resolve_hosts
check_command
start_horovodrun
