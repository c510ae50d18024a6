// SPDX-License-Identifier: Apache-2.0

package wire

// bytesQueued is the ioctl that returns the number of bytes to read: FIONREAD of <sys/filio.h>. Daemons and controllers
// run on Linux only; kubectl-wangell, which links this package, also runs on macOS.
const bytesQueued = 0x4004667f
