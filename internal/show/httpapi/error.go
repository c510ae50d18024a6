// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"net/http"

	"wangell.loutres.me/internal/runtime"
)

// Error is an error response of an instance.
type Error struct {
	Code int // HTTP status
	Text string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Is makes status 404 match runtime.ErrNotFound.
func (e *Error) Is(target error) bool {
	return target == runtime.ErrNotFound && e.Code == http.StatusNotFound
}
