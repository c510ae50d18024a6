#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the programs in src for both architectures: go generate ./internal/runtime/containerd/podinit
set -eu

flags="-c -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector -fno-jump-tables
    -fno-asynchronous-unwind-tables -fno-ident -mgeneral-regs-only"
# So that the code refers to its texts relative to itself, and needs no linker.
for program in init wait; do
    # shellcheck disable=SC2086 # one word each
    clang-19 --target=x86_64-linux-gnu $flags -fpie -fcf-protection=none -o $program"_amd64.o" src/$program.c
    # shellcheck disable=SC2086
    clang-19 --target=aarch64-linux-gnu $flags -mcmodel=tiny -o $program"_arm64.o" src/$program.c
done
clang-19 -dumpversion >init.clang
