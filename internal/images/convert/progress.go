// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"io"
	"sync"
)

// Stages of Run, for progress.
const (
	StageConvert = "convert"
	StageVerify  = "verify"
)

// progress counts bytes of the source's blobs. Those that are read twice count twice.
type progress struct {
	report func(stage string, done, total int64)

	mu          sync.Mutex
	stage       string
	done, total int64
}

func (p *progress) begin(stage string, total int64) {
	p.mu.Lock()
	p.stage, p.done, p.total = stage, 0, total
	p.mu.Unlock()
	p.add(0)
}

func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = min(p.done+n, p.total)
	if p.report != nil {
		p.report(p.stage, p.done, p.total)
	}
}

// reader returns a reader that counts.
func (p *progress) reader(r io.ReadCloser) io.ReadCloser { return countedReader{r, p} }

type countedReader struct {
	io.ReadCloser
	p *progress
}

// Read implements io.Reader.
func (r countedReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.p.add(int64(n))
	return n, err
}
