#!/usr/bin/env bash
# Starts ranks on Tencent Cloud instances with data on CFS, by NFS 3.
#
#   examples/launch/tencent.sh --file-system 10.0.0.7:/fsid0123 --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# --machine is GT4.41XLARGE948 (8 A100) or PNV4.28XLARGE466 (4 A10), or another, with or without GPUs, with its --shm-size.
# With NFS 3 the path is the file system's FSID, as shown on its mount page.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

CLOUD="Tencent Cloud with CFS"
VALUES[--machine]=GT4.41XLARGE948
MACHINES=(
    [GT4.41XLARGE948]="8 474G 8 A100, 948 GiB"
    [PNV4.28XLARGE466]="4 233G 4 A10, 466 GiB"
)
FILE_SYSTEM_TYPE=nfs
# https://www.tencentcloud.com/document/product/582/78755: NFS 3 has the better metadata performance
MOUNT_OPTIONS=vers=3,nolock,proto=tcp,noresvport
start_on_cloud "$@"
