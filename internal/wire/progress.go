// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync/atomic"
	"time"
)

// progress tells how far the reader of a socket has come. Sessions ask it before they end for silence: on a machine
// with too little CPU the peer's datagrams may have arrived without having been read.
type progress struct {
	epoch time.Time
	at    atomic.Int64 // nanoseconds since epoch
}

func newProgress() *progress { return &progress{epoch: time.Now()} }

// reached reports that whatever arrived before t has been handled.
func (p *progress) reached(t time.Time) { p.at.Store(int64(t.Sub(p.epoch))) }

// handled returns a time before which all that arrived has been handled.
func (p *progress) handled() time.Time { return p.epoch.Add(time.Duration(p.at.Load())) }
