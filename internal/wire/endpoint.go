// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// socketBuffer is the size in bytes that both ends ask for as the receive buffer of their socket. The kernel grants
// what net.core.rmem_max allows; datagrams that do not fit are lost and repeated. It is not larger because a server
// that is overloaded would then find keepalives too old instead of lost.
const socketBuffer = 1 << 20

// environment is what both ends need from the machine they run on. Tests replace it to play another machine.
type environment struct {
	boot bootID
	now  func() monotime.Time
}

// withDefaults returns the environment with unset fields read from the machine.
func (e environment) withDefaults() (environment, error) {
	var err error
	if e.boot == (bootID{}) {
		e.boot, err = readBootID()
	}
	if e.now == nil {
		e.now = monotime.Now
	}
	return e, err
}

// logOrDiscard returns log, or a logger that discards everything if log is nil.
func logOrDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// keepaliveOrDefault returns d, or DefaultKeepalive if d is not positive.
func keepaliveOrDefault(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultKeepalive
	}
	return d
}

// dropLog counts dropped datagrams and logs a few of them. Only the goroutine that reads the socket uses it.
type dropLog struct {
	counters *counters
	log      *slog.Logger
	last     time.Time
}

// dropped counts a datagram that was dropped because of err. from is its sender.
func (l *dropLog) dropped(err error, from any) {
	l.counters.drop(err)
	// Late datagrams of a session that has ended are normal.
	if now := time.Now(); !errors.Is(err, errUnknown) && now.Sub(l.last) >= dropLogGap {
		l.last = now
		l.log.Warn("datagram dropped; further ones are counted but not logged for a while", "from", from, "error", err)
	}
}
