#!/usr/bin/env bash
# Starts ranks on Alibaba Cloud c10g1.20xlarge (8 V100, 336 GiB, 32 Gbit/s) with data on File Storage NAS, by NFS 4.0.
#
#   examples/launch/alibaba.sh --file-system 0123-abc.cn-hangzhou.nas.aliyuncs.com:/ --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# CommLib's Table 1 names OSS, an object store: copy the data from there to NAS, or mount OSS with ossfs yourself.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

INSTANCE="Alibaba Cloud c10g1.20xlarge, File Storage NAS"
FILE_SYSTEM_TYPE=nfs
# https://www.alibabacloud.com/help/doc-detail/184789.htm
MOUNT_OPTIONS=vers=4,minorversion=0,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport
VALUES[--shm-size]=160G
start_on_cloud "$@"
