#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Compiles src/init.c for both architectures: go generate ./internal/runtime/containerd/podinit
set -eu

flags="-c -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector -fno-jump-tables
    -fno-asynchronous-unwind-tables -fno-ident -mgeneral-regs-only"
# So that the code refers to its texts relative to itself, and needs no linker.
# shellcheck disable=SC2086 # one word each
clang-19 --target=x86_64-linux-gnu $flags -fpie -fcf-protection=none -o init_amd64.o src/init.c
# shellcheck disable=SC2086
clang-19 --target=aarch64-linux-gnu $flags -mcmodel=tiny -o init_arm64.o src/init.c
clang-19 -dumpversion >init.clang
