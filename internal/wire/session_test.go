// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/tasks"
)

// loneSession returns the server's end of a session, and a function that returns the frames it has sent.
func loneSession(t *testing.T, receive func(Message), heard func(keepalive)) (s *session, sent func() []frame) {
	t.Helper()
	noLeak(t)
	seals := newSessionSeals(testKey, random{1}, random{2})
	var mu sync.Mutex
	var frames []frame
	group := &tasks.Group{}
	s = newSession(sessionConfig{
		local: 1, remote: 2, seal: seals.toClient, open: seals.toServer,
		keepalive: DefaultKeepalive, progress: newProgress(),
		now: monotime.Now, counters: &counters{}, log: slog.New(slog.DiscardHandler), group: group,
		write: func(datagrams [][]byte) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range datagrams {
				payload, err := openData(seals.toClient, append([]byte(nil), d...))
				if err != nil {
					t.Error(err)
					return
				}
				if err := parseFrames(payload, func(f *frame) { frames = append(frames, *f) }); err != nil {
					t.Error(err)
				}
			}
		},
		joined: func() {}, work: func() {}, left: func(error) {}, ended: func() {},
		receive: receive, heard: heard,
	})
	t.Cleanup(func() {
		s.end(ErrClosed, goodbyeClosed)
		group.Stop()
	})
	return s, func() []frame {
		mu.Lock()
		defer mu.Unlock()
		return append([]frame(nil), frames...)
	}
}

// arrive processes the payload of a datagram that arrives alone.
func (s *session) arrive(counter uint64, payload []byte) error {
	err := s.process(counter, payload)
	s.settle(time.Now())
	return err
}

func TestDatagramsReceivedTogetherShareAnAcknowledgement(t *testing.T) {
	let := make(chan struct{})
	s, sent := loneSession(t, func(Message) { <-let }, func(keepalive) {})
	defer close(let)
	b, err := encode(wake(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10) {
		if err := s.process(i, appendReliable(nil, i, 0, b)); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(time.Now())
	if got := sent(); len(got) != 1 || got[0].ack != (ack{next: 10}) {
		t.Errorf("10 datagrams were answered by %+v", got)
	}
}

func TestSegmentIsAcknowledgedAtOnceAndWhenHandled(t *testing.T) {
	let := make(chan struct{})
	s, sent := loneSession(t, func(Message) { <-let }, func(keepalive) {})
	b, err := encode(wake(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.arrive(0, appendReliable(nil, 0, flagDone, b)); err != nil {
		t.Fatal(err)
	}
	if got := sent(); len(got) != 1 || got[0].ack != (ack{next: 1}) {
		t.Errorf("while the handler runs: %+v", got)
	}
	close(let)
	eventually(t, "acknowledged as handled", func() bool { return len(sent()) == 2 })
	if got := sent()[1]; got.ack != (ack{next: 1, done: 1}) {
		t.Errorf("after the handler: %+v", got)
	}
	// A duplicate is acknowledged but not handled. A segment after a gap has its bit set.
	if err := s.arrive(1, appendReliable(appendReliable(nil, 0, flagDone, b), 3, 0, b)); err != nil {
		t.Fatal(err)
	}
	if got := sent(); len(got) != 3 || got[2].ack != (ack{next: 1, bits: 0b10, done: 1}) {
		t.Errorf("after a repeat: %+v", got)
	}
}

func TestOvertakenKeepaliveIsIgnored(t *testing.T) {
	var versions []uint64
	s, sent := loneSession(t, func(Message) {}, func(k keepalive) { versions = append(versions, k.tableVersion) })
	for _, counter := range []uint64{5, 4, 6} {
		if err := s.arrive(counter, keepalive{sent: 1, tableVersion: 10 * counter}.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(versions) != 2 || versions[0] != 50 || versions[1] != 60 || len(sent()) != 2 {
		t.Errorf("used %v, answered %d times", versions, len(sent()))
	}
}

func TestMalformedPayloadHasNoEffect(t *testing.T) {
	s, sent := loneSession(t, func(m Message) { t.Errorf("handled %+v", m) }, func(keepalive) {})
	b, err := encode(wake(1))
	if err != nil {
		t.Fatal(err)
	}
	if s.arrive(0, append(appendReliable(nil, 0, 0, b), 99)) == nil {
		t.Error("an unknown frame is accepted")
	}
	if s.arrive(1, ack{next: 7}.append(nil)) == nil {
		t.Error("an acknowledgement of a segment that was never sent is accepted")
	}
	if len(sent()) != 0 || s.receiver.next != 0 {
		t.Error("a frame of a malformed payload was used")
	}
}

// An end that was suspended gives its peer one interval after it resumes.
func TestSuspendedProcessDoesNotTakeItsPauseForSilence(t *testing.T) {
	s, _ := loneSession(t, func(Message) {}, func(keepalive) {})
	s.keepalive = time.Hour // so that no timer fires by itself
	hear := func(counter uint64) {
		t.Helper()
		if err := s.arrive(counter, keepalive{sent: 1}.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	// pass fires the timer as if d had passed since the last datagram, or since the session came into doubt.
	pass := func(d time.Duration) (over bool) {
		s.mu.Lock()
		s.heardAt = s.heardAt.Add(-d)
		if !s.doubted.IsZero() {
			s.doubted = s.doubted.Add(-d)
		}
		s.mu.Unlock()
		s.onTimer()
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.endErr != nil
	}
	for i := range 3 {
		hear(uint64(i))
		if pass(100 * s.keepalive) {
			t.Fatal("the session ended right after a pause")
		}
	}
	if !pass(s.keepalive) || s.endErr != errSilent {
		t.Errorf("the session did not end one silent interval after the pause: %v", s.endErr)
	}
}

// A datagram that arrived may still wait for a reader that is behind.
func TestSilenceCountsOnceTheReaderHasCaughtUp(t *testing.T) {
	s, _ := loneSession(t, func(Message) {}, func(keepalive) {})
	s.keepalive = time.Hour // so that no timer fires by itself
	if err := s.arrive(0, keepalive{sent: 1}.append(nil)); err != nil {
		t.Fatal(err)
	}
	// pass fires the timer as if d had passed.
	pass := func(d time.Duration) (over bool) {
		s.mu.Lock()
		s.heardAt, s.doubted = s.heardAt.Add(-d), s.doubted.Add(-d)
		s.mu.Unlock()
		s.onTimer()
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.endErr != nil
	}
	s.doubted = time.Now()
	s.progress.reached(s.doubted.Add(-2 * maxExtended * s.keepalive))
	for i := range maxExtended {
		if pass(s.keepalive) {
			t.Fatalf("the session ended after %d intervals, although its reader is behind", i)
		}
	}
	if !pass(s.keepalive) {
		t.Errorf("the session has not ended after %d intervals", maxExtended)
	}
}

func TestReaderReportsWhatItHasHandled(t *testing.T) {
	from, to := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	defer from.Close()
	const idle, size = 10 * time.Millisecond, 2
	p := newProgress()
	r := newBatchReader(to, size, p, idle)
	for range 2*size + 1 {
		if _, err := from.WriteToUDPAddrPort([]byte("x"), to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
	}
	arrived := time.Now()
	for i, want := range []int{size, size, 1} {
		if n, err := r.read(); n != want || err != nil {
			t.Fatalf("read %d, %v; want %d", n, err, want)
		}
		if !p.handled().Before(arrived) {
			t.Errorf("reading %d reports what was not handled", i)
		}
	}
	done := make(chan error)
	go func() {
		_, err := r.read()
		done <- err
	}()
	eventually(t, "the empty socket is reported", func() bool { return p.handled().After(arrived.Add(3 * idle)) })
	to.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed socket: %v", err)
	}
}

// A session that replaces this one waits until it has finished.
func TestSessionThatNeverBecameLiveFinishes(t *testing.T) {
	s, _ := loneSession(t, func(Message) {}, func(keepalive) {})
	s.end(errUnproven, 0)
	select {
	case <-s.finished:
	case <-time.After(time.Minute):
		t.Fatal("the session does not finish")
	}
	if err := s.arrive(0, nil); err != nil {
		t.Error(err)
	}
}
