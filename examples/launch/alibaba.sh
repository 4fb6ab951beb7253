#!/usr/bin/env bash
# Starts ranks on Alibaba Cloud instances with data on File Storage NAS, by NFS 4.0.
#
#   examples/launch/alibaba.sh --file-system 0123-abc.cn-hangzhou.nas.aliyuncs.com:/ --hostfile hosts -- \
#       python -m examples.imagenet --recipe recommended --data /mnt/data/imagenet --cache-dir /var/tmp/datacache
#
# --machine is ecs.gn7e-c16g1.32xlarge (8 A100), ecs.gn7i-c32g1.32xlarge (4 A10) or ecs.c8i.24xlarge (no GPU), or another
# with its --shm-size. OSS is an object store: copy the data from there to NAS, or mount OSS with ossfs yourself.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

CLOUD="Alibaba Cloud with File Storage NAS"
VALUES[--machine]=ecs.gn7e-c16g1.32xlarge
MACHINES=(
    [ecs.gn7e-c16g1.32xlarge]="8 500G 8 A100, 1,000 GiB"
    [ecs.gn7i-c32g1.32xlarge]="4 376G 4 A10, 752 GiB"
    [ecs.c8i.24xlarge]="0 96G 96 vCPUs, 192 GiB"
)
FILE_SYSTEM_TYPE=nfs
# https://www.alibabacloud.com/help/doc-detail/184789.htm
MOUNT_OPTIONS=vers=4,minorversion=0,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport
start_on_cloud "$@"
