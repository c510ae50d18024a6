// SPDX-License-Identifier: Apache-2.0

package wire

import "golang.org/x/sys/unix"

// bytesQueued is the ioctl that returns the number of bytes to read.
const bytesQueued = unix.SIOCINQ
