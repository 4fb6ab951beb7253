#!/usr/bin/env bash
# Installs Horovod into the environment of a Python, which must have TensorFlow. Its wheel is built once for each set of
# things it depends on and kept in a cache outside the checkout. What only the build needs (CMake, an old setuptools) goes
# into a temporary folder, not into the environment.
#
#   build_wheel.sh PYTHON          installs, building when the cache has no wheel
#
# HVD_SPARSE_CACHE names the cache (default: ~/.cache/hvd_sparse).
# HOROVOD_GPU_OPERATIONS=NCCL builds for GPUs, with a CUDA 12 toolkit (HOROVOD_CUDA_HOME, or that of the nvcc that is found;
# pip's packages for CUDA 12 have no nvcc) and with NCCL (HOROVOD_NCCL_HOME, what the compiler finds, or the environment's
# nvidia-nccl-cu12, which tensorflow[and-cuda] brings).
set -euo pipefail
usage="usage: build_wheel.sh PYTHON, the interpreter of an environment that has TensorFlow"
python=${1:?$usage}
python=$("$python" -c 'import sys; print(sys.executable)') # a shim of pyenv is not in the environment itself
here=$(cd "$(dirname "$0")" && pwd)
version=0.28.1
oldest=2.21 # TensorFlow; the sources are changed by include/ to fit this one
# <81: Horovod 0.28.1 imports pkg_resources when it is built. <4: it asks for a policy that CMake 4 dropped.
builders=(setuptools==80.9.0 wheel==0.45.1 cmake==3.31.6 patch-ng==1.19.1 packaging cloudpickle psutil PyYAML)
cache=${HVD_SPARSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvd_sparse}
operations=${HOROVOD_GPU_OPERATIONS:-}
nccl_package="" # its folder, if NCCL is that of pip

fail() {
    echo "build_wheel.sh: $*" >&2
    exit 1
}

version_of() {
    "$python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1" 2>/dev/null
}

pip() {
    "$python" -m pip --disable-pip-version-check --no-input "$@"
}

# Since GCC 14 it is an error that a constant is assigned to, in a template that nobody uses. What the patches mend is said
# in each of them.
fit_sources() {
    sed -i 's/^  const size_type count_;/  size_type count_;/' "$1/third_party/flatbuffers/include/flatbuffers/stl_emulation.h"
    local each
    for each in "$here"/patches/*.patch; do
        echo "$each"
        "$builder" -m patch_ng --strip=1 --directory="$1" "$each" || return
    done
}

# Prints what a build for GPUs depends on; for one without, nothing.
describe_gpu() {
    [[ -n $operations ]] || return 0
    echo "$operations, NCCL $nccl${nccl_package:+ of pip}, $("$nvcc" --version | tail -2), ${HOROVOD_BUILD_CUDA_CC_LIST:-}"
}

# The version of NCCL whose header is in a folder.
nccl_in() {
    [[ -r $1/include/nccl.h ]] && sed -nE 's/^#define NCCL_(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p' "$1/include/nccl.h" \
        | paste -sd .
}

# The folder of the package nvidia-nccl-cu12, which has no libnccl.so: the linker is given one.
nccl_of_pip() {
    "$python" -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null
}

find_gpu() {
    [[ $operations == NCCL ]] || fail "HOROVOD_GPU_OPERATIONS must be NCCL, or empty for none, got $operations."
    nvcc=$(readlink -f "$(command -v "${HOROVOD_CUDA_HOME:+$HOROVOD_CUDA_HOME/bin/}nvcc")") && [[ -n $nvcc ]] \
        || fail "HOROVOD_GPU_OPERATIONS=$operations needs nvcc, of a CUDA 12 toolkit: install one and set" \
            "HOROVOD_CUDA_HOME to its folder (pip's packages for CUDA 12 have no nvcc), or unset HOROVOD_GPU_OPERATIONS" \
            "to build for CPUs."
    local release
    cuda=${nvcc%/bin/nvcc}
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [[ $release == 12 ]] || fail "$nvcc is of CUDA $release, and TensorFlow $tensorflow uses CUDA 12: set HOROVOD_CUDA_HOME" \
        "to the folder of a CUDA 12 toolkit, or unset HOROVOD_GPU_OPERATIONS to build for CPUs."
    find_nccl
}

find_nccl() {
    local folder package folders=("$cuda" /usr)
    package=$(nccl_of_pip) && folders+=("$package")
    [[ -z ${HOROVOD_NCCL_HOME:-} ]] || folders=("$HOROVOD_NCCL_HOME")
    for folder in "${folders[@]}"; do
        nccl=$(nccl_in "$folder") || continue
        [[ $folder != "$package" ]] || nccl_package=$folder
        return 0
    done
    fail "HOROVOD_GPU_OPERATIONS=$operations needs NCCL, and nccl.h was not found: install libnccl-dev, or pip's" \
        "nvidia-nccl-cu12, or set HOROVOD_NCCL_HOME to the folder that has include/nccl.h."
}

tensorflow=$(version_of tensorflow-cpu || version_of tensorflow) \
    || fail "$python has no TensorFlow: $python -m pip install tensorflow==$oldest.0 (or tensorflow-cpu==$oldest.0)."
[[ $(printf '%s\n' "$oldest" "$tensorflow" | sort -V | head -1) == "$oldest" ]] \
    || fail "Horovod is built for TensorFlow $oldest here, and $python has $tensorflow: install tensorflow==$oldest.0."
command -v "${CXX:-c++}" >/dev/null || fail "a C++17 compiler is missing: install g++, or set CXX."
command -v make >/dev/null || fail "make is missing: install it."
[[ -z $operations ]] || find_gpu

with_mpi=0
# Open MPI's programs have an mpicxx also where its headers are not installed.
echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1 && with_mpi=1
key=$( { echo "$version $tensorflow mpi=$with_mpi"; "$python" -VV; "${CXX:-c++}" --version | head -1; uname -m
         cat "$here"/build_wheel.sh; find "$here"/include "$here"/patches -type f | sort | xargs -d '\n' cat
         describe_gpu
         [ "$with_mpi" = 1 ] && mpicxx --version; true; } | sha256sum | cut -c1-16)
wheels=$cache/horovod-$version-$key

if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    echo "Building Horovod $version for TensorFlow $tensorflow${operations:+ with $operations} (about 3 minutes, once);" \
        "the wheel goes to $wheels"
    building=$(mktemp -d)
    trap 'rm -rf "$building"' EXIT
    # Horovod's build splits TensorFlow's flags, which hold the path of the environment, at spaces.
    ln -s "$(cd "$(dirname "$python")/.." && pwd)" "$building/environment"
    builder=$building/environment/bin/$(basename "$python")
    pip install --quiet --target "$building/tools" "${builders[@]}" || fail "the packages ${builders[*]} could not be had."
    export PYTHONPATH=$building/tools
    include=$(TF_CPP_MIN_LOG_LEVEL=3 "$builder" -c 'import tensorflow as tf; print(tf.sysconfig.get_include())' 2>/dev/null) \
        || fail "$python cannot import TensorFlow: try $python -c 'import tensorflow'."
    ln -s "$here/include" "$building/include"
    export CPATH="$building/include:$include/external/highwayhash:$include/external/farmhash_archive/src${CPATH:+:$CPATH}"
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    if [ "$with_mpi" = 1 ]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
    export CXXFLAGS="-include $building/include/standard.h${CXXFLAGS:+ $CXXFLAGS}"
    if [[ -n $operations ]]; then
        export HOROVOD_GPU=CUDA HOROVOD_CUDA_HOME=$cuda
        export CXXFLAGS="-include $building/include/gpu.h $CXXFLAGS"
    fi
    if [[ -n $nccl_package ]]; then
        mkdir -p "$building/nccl/lib"
        ln -s "$nccl_package/include" "$building/nccl/include"
        ln -s "$nccl_package/lib/libnccl.so.2" "$building/nccl/lib/libnccl.so"
        # Where the package lies as seen from horovod/tensorflow/, for the loader.
        export HOROVOD_NCCL_HOME=$building/nccl LDFLAGS="-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib${LDFLAGS:+ $LDFLAGS}"
    fi
    export MAKEFLAGS="-j$(nproc)" PATH="$building/tools/bin:$building/environment/bin:$PATH"
    # The source archive only: there are no binary wheels, and a stray one would be built for something else. So would be
    # one that pip itself kept from an earlier build: its cache knows nothing of MPI, TensorFlow or the compiler.
    {
        "$builder" -m pip download --no-cache-dir --no-deps --no-build-isolation --no-binary horovod \
            -d "$building" "horovod==$version" \
            && tar -xzf "$building/horovod-$version.tar.gz" -C "$building" \
            && fit_sources "$building/horovod-$version" \
            && "$builder" -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
                -w "$building" "$building/horovod-$version"
    } >"$building/log" 2>&1 || {
        mkdir -p "$cache" && cp "$building/log" "$cache/horovod-$version.log"
        grep -E -A3 '(error|Error): |No such file' "$building/log" | head -30 >&2 || tail -60 "$building/log" >&2
        fail "Horovod $version did not build: errors stand above, the whole log is in $cache/horovod-$version.log."
    }
    unset PYTHONPATH
    mkdir -p "$wheels"
    # Rename last, so that an interrupted build never leaves half a wheel in the cache.
    for wheel in "$building"/horovod-*.whl; do
        cp "$wheel" "$wheels/.$$.part"
        mv "$wheels/.$$.part" "$wheels/$(basename "$wheel")"
    done
fi
pip install --quiet --no-deps --force-reinstall "$wheels"/horovod-*.whl
pip install --quiet "$wheels"/horovod-*.whl # and what it needs
