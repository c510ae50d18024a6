// SPDX-License-Identifier: Apache-2.0

package lazy

import "github.com/hanwen/go-fuse/v2/fuse"

// readOnly is a file system whose files are never written. The kernel need not say when one is closed, which would be
// one more request for each file.
type readOnly struct{ fuse.RawFileSystem }

// Open implements fuse.RawFileSystem.
func (r readOnly) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := r.RawFileSystem.Open(cancel, in, out)
	out.OpenFlags |= fuse.FOPEN_NOFLUSH
	return status
}
