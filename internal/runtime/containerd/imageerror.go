// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"

	"wangell.loutres.me/internal/runtime"
)

// imageError describes a problem with the image of a service. It wraps runtime.ErrImage without its text.
type imageError struct {
	text  string
	cause error
}

func (e *imageError) Error() string { return e.text }

func (e *imageError) Unwrap() []error { return []error{runtime.ErrImage, e.cause} }

// imageFailure explains an error of pulling, loading or unpacking an image.
func imageFailure(err error, doing string) error {
	err = native(err)
	switch {
	case errors.Is(err, runtime.ErrUnavailable):
		return err
	case diskFull(err):
		return &imageError{doing +
			": no space left on device where containerd keeps images: free some space or use another folder", err}
	}
	return &imageError{doing + ": " + err.Error(), err}
}
