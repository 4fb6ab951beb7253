#!/usr/bin/env bash
# Starts ranks on Tencent Cloud 18XLARGE320 (8 V100, 320 GiB, 25 Gbit/s), CommLib's own, with data on CFS, by NFS 3.
#
#   examples/launch/tencent.sh --file-system 10.0.0.7:/fsid0123 --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# With NFS 3 the path is the file system's FSID, as shown on its mount page.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

INSTANCE="Tencent Cloud 18XLARGE320, CFS"
FILE_SYSTEM_TYPE=nfs
# https://www.tencentcloud.com/document/product/582/78755: NFS 3 has the better metadata performance
MOUNT_OPTIONS=vers=3,nolock,proto=tcp,noresvport
VALUES[--shm-size]=160G
start_on_cloud "$@"
