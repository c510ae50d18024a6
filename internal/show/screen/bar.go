// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"strings"
)

// Bar draws a progress bar of a number of columns, followed by the figures in megabytes (10⁶ bytes). done and total are
// bytes; a total of 0 means that it is not known yet.
func Bar(done, total int64, columns int) string {
	const mega = 1e6
	if total <= 0 {
		return fmt.Sprintf("[%s] %.1f MB", strings.Repeat("·", columns), float64(done)/mega)
	}
	full := int(int64(columns) * min(max(done, 0), total) / total)
	bar := strings.Repeat("━", full) + strings.Repeat("·", columns-full)
	return fmt.Sprintf("[%s] %.1f / %.1f MB", bar, float64(done)/mega, float64(total)/mega)
}
