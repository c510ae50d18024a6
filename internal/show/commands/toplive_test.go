// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
)

// begin is when the first sample of a test is taken.
var begin = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// sampleAt is a sample some seconds after begin, of n services with one pod each. The first has most new connections,
// the last has most open ones.
func sampleAt(seconds, n int) view.Sample {
	s := view.Sample{At: begin.Add(time.Duration(seconds) * time.Second)}
	for i := range n {
		traffic := status.Traffic{NewFlows: uint64(seconds * 10 * (n - i)), OpenFlows: uint32(i + 1)}
		s.Services = append(s.Services, status.Status{
			Service: v1alpha1.WangellService{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%02d", (i+1)%n)},
				Status:     v1alpha1.WangellServiceStatus{State: lifecycle.Warm.String()},
			},
			Traffic: traffic, Serving: 1, Desired: 1,
			Pods: []status.Pod{{
				ID: fmt.Sprintf("pod%02d", (i+1)%n), State: lifecycle.PodServing.String(), Traffic: traffic,
			}},
		})
	}
	return s
}

// newTopModel is the state of top after two samples of n services, on a terminal of 120 columns and some lines.
func newTopModel(n, lines int) *topModel {
	m := &topModel{
		ctx: context.Background(), every: time.Second, order: view.TopByRate, pods: true,
		sample: func(context.Context) (view.Sample, error) { return sampleAt(9, n), nil },
	}
	m.Update(tea.WindowSizeMsg{Width: 120, Height: lines})
	m.Update(sampled{Sample: sampleAt(0, n)})
	m.Update(sampled{Sample: sampleAt(2, n)})
	return m
}

// press presses keys, of which one of several letters has a name. It reports whether the last one ends the program.
func press(m *topModel, keys ...string) (ends bool) {
	named := map[string]rune{
		"space": tea.KeySpace, "up": tea.KeyUp, "down": tea.KeyDown, "pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown,
		"home": tea.KeyHome, "esc": tea.KeyEscape,
	}
	for _, k := range keys {
		key := tea.KeyPressMsg{Code: []rune(k)[0], Text: k}
		switch code, ok := named[k]; {
		case ok:
			key = tea.KeyPressMsg{Code: code}
		case k == "ctrl+c":
			key = tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
		}
		_, cmd := m.Update(key)
		ends = false
		if cmd != nil {
			_, ends = cmd().(tea.QuitMsg)
		}
	}
	return ends
}

// names returns the services and pods on the screen, from top to bottom.
func names(m *topModel) string {
	var out []string
	for _, line := range m.lines() {
		for _, word := range strings.Fields(line) {
			if name := strings.TrimPrefix(word, "default/"); strings.HasPrefix(name, "s0") || strings.HasPrefix(name, "pod0") {
				out = append(out, name)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestKeysOfTopOrderServicesAndHidePods(t *testing.T) {
	m := newTopModel(3, 20)
	press(m, "p")
	for _, e := range []struct{ key, names, title string }{
		{"r", "s01 s02 s00", "by rate"},
		{"o", "s00 s02 s01", "by open"},
		{"n", "s00 s01 s02", "by name"},
	} {
		press(m, e.key)
		if got := names(m); got != e.names || !strings.Contains(m.lines()[0], e.title) {
			t.Errorf("%s: %s, want %s: %s", e.key, got, e.names, m.lines()[0])
		}
	}
	press(m, "p")
	if got := names(m); got != "s00 pod00 s01 pod01 s02 pod02" {
		t.Errorf("with pods: %s", got)
	}
	if title := m.lines()[0]; !strings.Contains(title, "3 services  6 open  60.0 new/s") {
		t.Errorf("the sums: %s", title)
	}
}

func TestKeysOfTopScrollWithinTheTable(t *testing.T) {
	m := newTopModel(5, 5) // room for two lines of ten
	press(m, "n")
	for _, e := range []struct{ key, names string }{
		{"up", "s00 pod00"}, // it is at the top
		{"down", "pod00 s01"},
		{"j", "s01 pod01"},
		{"k", "pod00 s01"},
		{"pgdown", "pod01 s02"},
		{"pgup", "pod00 s01"},
		{"pgdown pgdown pgdown pgdown pgdown", "s04 pod04"}, // it is at the end
		{"up", "pod03 s04"},
		{"home", "s00 pod00"},
		{"down g", "s00 pod00"},
	} {
		for _, k := range strings.Fields(e.key) {
			press(m, k)
			m.lines() // as after each key
		}
		if got := names(m); got != e.names {
			t.Errorf("%s: %s, want %s", e.key, got, e.names)
		}
	}
	if title := m.lines()[0]; !strings.Contains(title, "lines 1-2 of 10") {
		t.Errorf("what is left out: %s", title)
	}
	for _, line := range m.lines() {
		if len([]rune(line)) > 120 {
			t.Errorf("longer than the terminal: %q", line)
		}
	}
}

func TestSpaceStopsTopAndContinuesIt(t *testing.T) {
	m := newTopModel(2, 20)
	press(m, "space")
	m.Update(sampled{Sample: sampleAt(4, 2)})
	if title := m.lines()[0]; !strings.HasPrefix(title, "12:00:02") || !strings.Contains(title, "stopped") {
		t.Errorf("stopped: %s", title)
	}
	press(m, "space")
	_, next := m.Update(sampled{Sample: sampleAt(6, 2)})
	if title := m.lines()[0]; !strings.HasPrefix(title, "12:00:06") || strings.Contains(title, "stopped") {
		t.Errorf("it goes on: %s", title)
	}
	if next == nil {
		t.Error("no further sample is taken")
	}
}

func TestTopEnds(t *testing.T) {
	for _, key := range []string{"q", "esc", "ctrl+c"} {
		if !press(newTopModel(1, 20), key) {
			t.Errorf("%s does not end it", key)
		}
	}
	if press(newTopModel(1, 20), "x") {
		t.Error("a key without a meaning ends it")
	}
	m := newTopModel(1, 20)
	_, cmd := m.Update(sampled{err: errors.New("gone")})
	if _, ends := cmd().(tea.QuitMsg); !ends || m.err == nil {
		t.Errorf("an instance that has ended: %v", m.err)
	}
}

func TestTopWaitsForTwoSamples(t *testing.T) {
	m := &topModel{ctx: t.Context(), every: time.Second}
	m.Update(sampled{Sample: sampleAt(0, 1)})
	if got := m.lines(); len(got) != 1 || got[0] != "measuring…" {
		t.Errorf("%v", got)
	}
}
