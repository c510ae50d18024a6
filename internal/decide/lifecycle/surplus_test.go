// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// calm answers all that is open with success, and lets time pass until nothing is left to do.
func (w *world) calm() {
	for range 300 {
		answered := false
		for _, r := range w.m.Pods() {
			p := w.m.pod(r)
			if p == nil {
				continue
			}
			said := len(w.history)
			switch {
			case w.stopped[r]:
				w.step(StopDone{r})
			case p.is(podAway):
				w.step(Back{r})
			case p.is(podLeaving): // others end it
				w.step(Exited{Ref: r})
			case p.starting() || p.life == lifeServing && p.progress < podConfirmed:
				w.step(NetworkReady{r})
				w.step(Started{r})
				w.step(Listening{Ref: r, At: w.now})
			case p.life == lifeDraining:
				w.step(Quiet{r, w.gen, 0, 0})
			}
			answered = answered || len(w.history) > said
		}
		switch {
		case answered:
		case w.armed == 0:
			return
		default:
			w.now = max(w.now, w.armed)
			w.step(Timer{})
		}
	}
	w.fatal("it does not come to rest in state %s", w.m.State())
}

func TestServiceComesToRestWithTheDesiredNumberOfPods(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	warm := 0
	for range 10000 {
		w := newWorld(t, byte(rng.Uint32()))
		w.step(Scale{N: 1 + rng.IntN(5)})
		for range 1 + rng.IntN(40) {
			w.now = w.now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			ref := Ref(max(0, int(w.lastRef)+1-rng.IntN(6)))
			var ev Event
			switch rng.IntN(14) {
			case 0, 1, 2:
				ev = Appeared{ref}
			case 3, 4:
				ev = Leaving{Ref: ref}
			case 5, 6:
				ev = Scale{N: rng.IntN(6)}
			case 7:
				ev = Listening{Ref: ref, At: w.now}
			case 8:
				ev = StopDone{ref}
			case 9:
				ev = StartFailed{ref, errors.New("no"), true}
			case 10:
				ev = Quiet{ref, w.gen, 0, 0}
			case 11:
				ev = Exited{Ref: ref}
			case 12:
				ev = Adopted{Ref: ref}
			default:
				ev = Timer{Rolling: rng.IntN(2) == 0}
			}
			if _, ok := ev.(StopDone); ok && !w.stopped[ref] {
				continue // does not happen
			}
			w.step(ev)
		}
		w.calm()
		switch w.m.State() {
		case Warm:
			warm++
			if n := w.m.active(); n != w.m.desired || n != len(w.m.Pods()) || n != w.m.Serving() {
				w.fatal("%d pods desired, %d active of %d, %d serve", w.m.desired, n, len(w.m.Pods()), w.m.Serving())
			}
		case Cold, Failed:
			if len(w.m.Pods()) > 0 {
				w.fatal("%s, and there are pods %v", w.m.State(), slices.Clone(w.m.Pods()))
			}
		default:
			w.fatal("it rests in state %s", w.m.State())
		}
	}
	if warm < 1000 {
		t.Errorf("warm in the end only %d times", warm)
	}
}
