// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/debimage"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	d := p.withDefaults()
	parts := []func(context.Context, Params, lab.Output, *Samples) error{measureKube}
	if d.measures(PartMachine) {
		wangell, err := d.program()
		if err != nil {
			return nil, err
		}
		d.Wangell = wangell
		parts = slices.Insert(parts, 0, measureApps, measureSleepers, measureSurvival)
	}
	load := report.LoadAverage()
	var s Samples
	for _, part := range parts {
		if err := part(ctx, d, out, &s); err != nil {
			return nil, err
		}
	}
	r := newReport(s)
	r.Time, r.Versions = time.Now(), report.MachineVersions()
	r.Params = map[string]any{
		"apps": d.Apps, "rounds": d.Rounds, "sleepers": d.Sleepers, "freezes": d.Freezes, "connections": d.Connections,
		"flap (s)": d.Flap.Seconds(), "quick": d.Quick, "parts": strings.Join(d.Parts, ", "),
		"load average at begin": load, "load average at end": report.LoadAverage(),
	}
	return []*report.Report{r}, nil
}

// serviceName is the name of the service of an app that is measured in a state.
func serviceName(app, state string) string { return app + "-" + state }

// sleepSpec is the part of a manifest that has a service be in a state.
func sleepSpec(state string) string {
	switch state {
	case stateFrozen, stateReclaimed:
		return freezing(state == stateReclaimed)
	case statePrepared:
		return "  sleep: {prepared: 1}\n"
	}
	return ""
}

// measureApps measures all apps in all states, in turn.
func measureApps(ctx context.Context, p Params, out lab.Output, s *Samples) (err error) {
	if p.Rounds == 0 {
		return nil
	}
	var chosen []app
	var recipes []*debimage.Recipe
	var manifests []string
	for _, a := range apps() {
		if !slices.Contains(p.Apps, a.name) {
			continue
		}
		chosen = append(chosen, a)
		tag := ""
		if a.recipe != nil {
			recipes, tag = append(recipes, a.recipe), a.recipe.Tag()
		}
		for _, state := range a.states() {
			if a.recipe == nil {
				manifests = append(manifests, hello(serviceName(a.name, state), sleepSpec(state)))
			} else {
				manifests = append(manifests, manifest(serviceName(a.name, state), a, tag, sleepSpec(state)))
			}
		}
	}
	at, err := newPlace(ctx, p.Wangell, "2Gi", recipes, manifests)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	for _, r := range recipes {
		if err := at.AwaitImage(ctx, r.Tag(), patience); err != nil {
			return err
		}
	}
	total := 0
	for _, a := range chosen {
		total += p.Rounds * len(a.states())
		if !a.lasting {
			at.prepared++
		}
		if err := at.begin(ctx, a, p.Quick); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	for range p.Rounds {
		for _, a := range chosen {
			for _, state := range a.states() {
				answer, err := at.measure(ctx, a, state)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", a.name, state, err)
				}
				s.Answers = append(s.Answers, answer)
				out.Progress(len(s.Answers), total)
			}
		}
	}
	return nil
}

// begin starts all services of an app once, and gives those their data that keep running.
func (p *place) begin(ctx context.Context, a app, quick bool) error {
	for _, state := range a.states() {
		name := serviceName(a.name, state)
		if _, err := a.ask(ctx, p.Net.Client(), p.addresses[name]); err != nil {
			return fmt.Errorf("first request to %s: %w", name, err)
		}
		if a.fill != nil && state != stateCold && state != statePrepared {
			if err := a.fill(ctx, p.Net.Client(), p.addresses[name], quick); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure brings a service into a state and makes one request.
func (p *place) measure(ctx context.Context, a app, state string) (Answer, error) {
	name := serviceName(a.name, state)
	answer := Answer{App: a.name, State: state, Load: report.LoadAverage()}
	if err := p.enter(ctx, name, state); err != nil {
		return answer, err
	}
	id, err := p.pod(ctx, name)
	if err == nil && id != "" {
		answer.Resident, answer.Swapped, err = p.memory(id)
	} else if err == nil && state == statePrepared {
		answer.Resident, answer.Swapped, _, err = p.unlisted(ctx)
	}
	if err != nil {
		return answer, err
	}
	// What the last request and the change of state have caused is over.
	if err := lab.Sleep(ctx, quiet); err != nil {
		return answer, err
	}
	var t probe.Timing
	if t, err = a.ask(ctx, p.Net.Client(), p.addresses[name]); err != nil {
		return answer, err
	}
	answer.Connect, answer.FirstByte = report.Milliseconds(t.Connected), report.Milliseconds(t.FirstByte)
	return answer, nil
}

// enter brings a service into a state.
func (p *place) enter(ctx context.Context, name, state string) error {
	switch state {
	case stateFrozen:
		return p.frozen(ctx, name)
	case stateReclaimed:
		if err := p.frozen(ctx, name); err != nil {
			return err
		}
		id, err := p.pod(ctx, name)
		if err != nil {
			return err
		}
		return p.settled(ctx, id)
	case stateCold, statePrepared:
		// A client may have its answer before the instance knows that the pod listens.
		err := p.until(ctx, []string{name}, "awake", func(s status.Status) bool { return s.Serving == 1 })
		if err == nil {
			err = p.Control.Sleep(ctx, name)
		}
		if err == nil {
			err = p.until(ctx, []string{name}, "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
		}
		if err != nil {
			return err
		}
		// The end of the pod is not in the way of the next one.
		if err := lab.Sleep(ctx, time.Second); err != nil || state == stateCold {
			return err
		}
		return p.awaitPrepared(ctx)
	}
	return nil
}

// awaitPrepared waits until as many pods are prepared as there are services that want one, and their memory does not
// change any more: while a pod is being made, runc is in its cgroup.
func (p *place) awaitPrepared(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for last := -1.0; ; {
		resident, _, n, err := p.unlisted(ctx)
		if err != nil || n >= p.prepared && resident == last {
			return err
		}
		last = resident
		if err := lab.Sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%d pods are prepared, want %d: %w", n, p.prepared, err)
		}
	}
}

// unlisted returns the mean memory and the number of the pods that no service has, which are prepared.
func (p *place) unlisted(ctx context.Context) (resident, swapped float64, n int, err error) {
	services, err := p.Control.Status(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	listed := map[string]bool{}
	for _, s := range services {
		for _, pod := range s.Pods {
			listed[pod.ID] = true
		}
	}
	found, err := cgroupsBelow(p.PodCgroup(""))
	if err != nil {
		return 0, 0, 0, err
	}
	for _, id := range found {
		if listed[id] {
			continue
		}
		if r, w, err := p.memory(id); err == nil { // otherwise it was taken meanwhile
			resident, swapped, n = resident+r, swapped+w, n+1
		}
	}
	of := float64(max(n, 1))
	return resident / of, swapped / of, n, nil
}

// cgroupsBelow returns the names of the cgroups with memory directly below one.
func cgroupsBelow(parent string) (names []string, err error) {
	for _, place := range []string{"", "memory"} {
		entries, readErr := os.ReadDir(filepath.Join(cgroup.DefaultRoot, place, parent))
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
		err = readErr
		if err == nil {
			return names, nil
		}
	}
	return nil, err
}
