#!/bin/sh
# Builds the engine's products and its caches for arm64 and runs them under qemu's user mode, on processors with and
# without i8mm.
# Needs: python with the package `ziglang` (a C++ cross compiler) or $CXX_ARM64 (aarch64-linux-gnu-g++), and qemu-aarch64.
# Minutes, as nothing here is quick under qemu.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/neon}
compiler=${CXX_ARM64:-python -m ziglang c++ -target aarch64-linux-musl}
with=${CXX_ARM64:+-march=armv8.2-a}
with=${with:--mcpu=generic}
engine=$root/kernels/cpu/engine
flags="-std=c++20 -O2 -ffp-contract=fast -Wall -Wextra -I$engine"
mkdir -p "$build"
objects=
compile() { # source, name, more flags
    source=$1 object=$build/$2.o
    shift 2
    $compiler $flags "$@" -c "$source" -o "$object"
    objects="$objects $object"
}
for isa in avx2 avxvnni avx512vnni avx512bf16 amx; do compile "$engine/isa/$isa.cpp" "$isa"; done
compile "$engine/isa/portable.cpp" portable
compile "$engine/isa/neon.cpp" neon $with+dotprod
compile "$engine/isa/i8mm.cpp" i8mm $with+dotprod+i8mm
compile "$engine/packed.cpp" packed
compile "$engine/table.cpp" table
compile "$engine/trial.cpp" trial
compile "$engine/memory.cpp" memory
compile "$engine/ops/row_codes.cpp" row_codes -ffp-contract=off
compile "$engine/matmul/pack_blocks.cpp" pack_blocks
compile "$engine/matmul/pack_rows.cpp" pack_rows
compile "$root/kernels/cpu/isa/detect.cpp" detect
engine_objects=$objects
compile "$root/tests/cross/products.cpp" products
$compiler -static $objects -o "$build/products"
objects=$engine_objects
compile "$root/tests/cross/cache.cpp" cache
$compiler -static $objects -o "$build/cache"
qemu-aarch64 -cpu max "$build/cache" i8mm neon portable
qemu-aarch64 -cpu max "$build/products" i8mm neon portable
qemu-aarch64 -cpu neoverse-n1 "$build/products" neon # has dot products, and no i8mm
