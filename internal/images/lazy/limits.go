// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"fmt"
	"time"
)

const (
	// longestLimit is the longest pause that a registry is granted at once.
	longestLimit = time.Minute
	// limitedFor is how long after its last byte a registry may go on asking for pauses before reads fail.
	limitedFor = 5 * time.Minute
)

// limitedError is the answer of a registry that asks for a pause.
type limitedError struct {
	status string
	after  time.Duration
}

// Error implements error.
func (e *limitedError) Error() string {
	return fmt.Sprintf("it answers %s, and asks for a pause of %v", e.status, e.after)
}
