#!/usr/bin/env bash
# Tests the wheel for ARM's 64-bit processors on another machine: Debian's Python for them runs
# under qemu's user mode, with the wheel of Python 3.12 and later. An emulator tells nothing about
# speed.
#
#     release/test_aarch64.sh                      bits of all kernels; minutes
#     release/test_aarch64.sh tests/unit/kernels   tests that need torch; hours
set -euo pipefail
cd "$(dirname "$0")/.."
made=$PWD/build/aarch64

if ! { command -v qemu-aarch64-static && command -v mmdebstrap; } >/dev/null; then
  { apt-get update -qq && apt-get install -qq --no-install-recommends qemu-user-static mmdebstrap; } >/dev/null || {
    echo "qemu-user-static and mmdebstrap are needed; install them with your system's packages" >&2; exit 1; }
fi

if [[ ! -e $made/root/.ready ]]; then
  rm -rf "$made/root" && mkdir -p "$made"
  # Unpacked, not configured: nothing of another architecture is run as root.
  mmdebstrap --quiet --mode="$([[ $EUID = 0 ]] && echo root || echo unshare)" --variant=extract \
    --architectures=arm64 --include=python3,libstdc++6 trixie "$made/root"
  for folder in bin lib sbin; do
    [[ -e $made/root/$folder ]] || ln -s "usr/$folder" "$made/root/$folder"
  done
  touch "$made/root/.ready"
fi

wheel=(dist/gradwire-*-cp312-abi3-manylinux_2_28_aarch64.whl)
[[ -e ${wheel[0]} ]] || { echo "there is no wheel for ARM in dist; make wheels" >&2; exit 1; }
rm -rf "$made/wheel" && python3 -m zipfile -e "${wheel[0]}" "$made/wheel"

export PYTHONPATH=$made/wheel:$made/site:$PWD/tests OMP_NUM_THREADS=1
python=(qemu-aarch64-static -L "$made/root" "$made/root/usr/bin/python3.13")
"${python[@]}" -c 'import gradwire, platform; from gradwire import _native
print(platform.machine(), gradwire.__file__, _native.instruction_sets())
assert _native.instruction_sets() == ["plain", "neon"]'
"${python[@]}" tests/same_bits.py "$made"/wheel/gradwire/_native*.so
[[ $# -gt 0 ]] || exit 0

# Packages for that Python, unpacked by this machine's; torch without CUDA's libraries, in the last
# version for ARM that works without them.
if [[ ! -e $made/site/.ready ]]; then
  rm -rf "$made/site"
  install=(python3 -m pip install --quiet --target "$made/site" --python-version 3.13 --only-binary=:all:
    --platform manylinux2014_aarch64)
  for glibc in 17 27 28; do install+=(--platform "manylinux_2_${glibc}_aarch64"); done
  "${install[@]}" --no-deps torch==2.10.0
  "${install[@]}" --constraint <(grep -v '^torch' constraints.txt) filelock fsspec hypothesis jinja2 networkx \
    numpy pytest pytest-timeout pytest-xdist argcomplete rich sympy typing-extensions setuptools
  touch "$made/site/.ready"
fi
"${python[@]}" -m pytest -q -p no:cacheprovider -p no:xdist --timeout 3000 "$@"
