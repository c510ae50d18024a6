// SPDX-License-Identifier: Apache-2.0

package monotime

import (
	"os"
	"strings"
)

const bootFile = "/proc/sys/kernel/random/boot_id"

// BootID returns the UUID of this run of the kernel, as text (random(4)). Processes with equal boot IDs share
// CLOCK_MONOTONIC, and what the kernel keeps in memory.
func BootID() (string, error) {
	text, err := os.ReadFile(bootFile)
	return strings.TrimSpace(string(text)), err
}
