// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	w, err := workloadOf(params.Workload)
	if err != nil {
		return nil, err
	}
	versions := report.MachineVersions()
	images, packages, err := build(ctx, w, params.cases(w))
	if err != nil {
		return nil, err
	}
	maps.Copy(versions, packages)
	clients, err := w.versions(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(versions, clients)
	before := report.LoadAverage()
	samples, err := params.measureAll(ctx, w, images, out)
	if err != nil {
		return nil, err
	}
	settings := map[string]any{
		"workload": w.name(), "operations per minute (0: as many as possible)": params.Rate,
		"length of a measurement (s)": params.Duration.Seconds(), "repetitions": params.Repetitions,
		"quick": params.Quick, "tuned": w.tuning(), "load of the machine before": before,
		"load of the machine after": report.LoadAverage(), "file systems in files (bytes)": diskSize,
	}
	maps.Copy(settings, describeDisk())
	reports := []*report.Report{newReport(w, samples.without(false, true)), newDiskReport(w, samples.without(true, false))}
	for _, r := range reports {
		r.Time, r.Versions, r.Params = time.Now(), versions, settings
	}
	return reports, nil
}

// measureAll runs all tests in each repetition, in an order of its own. The order is random, but the same in each run
// of the experiment.
func (p Params) measureAll(ctx context.Context, w workload, images built, out lab.Output) (Samples, error) {
	cases := p.cases(w)
	samples := Samples{Cases: cases}
	random := rand.New(rand.NewPCG(14, 1))
	for repetition := 1; repetition <= p.Repetitions; repetition++ {
		for _, n := range random.Perm(len(cases)) {
			r := Run{Case: cases[n].Key, Repetition: repetition, Order: len(samples.Runs) + 1}
			err := p.measure(ctx, w, cases[n], images, &r)
			if ctx.Err() != nil {
				return samples, ctx.Err()
			}
			var cleanUp cleanUpError
			if errors.As(err, &cleanUp) {
				return samples, err
			}
			if err != nil { // a test that cannot run here says so in the report
				r.Error = err.Error()
				r.Result = Result{}
			}
			samples.Runs = append(samples.Runs, r)
			out.Progress(len(samples.Runs), p.Repetitions*len(cases))
			out.Log("%s, repetition %d: %s", cases[n].Key, repetition, r.line())
		}
	}
	for _, r := range samples.Runs {
		if r.Error == "" {
			return samples, nil
		}
	}
	return samples, fmt.Errorf("no test could be run: %s", samples.Runs[0].Error)
}

// cleanUpError says that something was left behind, which ends the experiment.
type cleanUpError struct{ error }

func (e cleanUpError) Unwrap() error { return e.error }

// line sums a run up.
func (r Run) line() string {
	if r.Error != "" {
		return r.Error
	}
	l := r.latencies("")
	return fmt.Sprintf("%d operations, median %.2f ms, p90 %.2f ms", len(l), report.Median(l), report.Percentile(l, 90))
}

// measure makes a place for one run, measures, and removes it.
func (p Params) measure(ctx context.Context, w workload, c Case, images built, r *Run) (err error) {
	d, err := newDisk(ctx, c.Disk, p.Device)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := d.close(); closeErr != nil {
			err = cleanUpError{errors.Join(err, closeErr)}
		}
	}()
	var at place
	switch servers := w.servers(c); {
	case c.Snapshotter != "":
		at, err = newOnSnapshot(ctx, p.containerds(), d.dir, c.Snapshotter, servers[0], images)
	case c.Direct:
		at, err = newDirectly(ctx, d.dir, servers[0], images)
	default:
		at, err = newServices(ctx, p, d.dir, c, servers, images)
	}
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := at.close(); closeErr != nil {
			err = cleanUpError{errors.Join(err, fmt.Errorf("clean up after %s: %w", c.Key, closeErr))}
		}
	}()
	clients := at.client()
	clients.dir = filepath.Dir(d.dir)
	if err := w.prepare(ctx, clients); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if err := dropCaches(); err != nil {
		return err
	}
	m, err := startMeter()
	if err != nil {
		return err
	}
	r.Result, err = w.measure(ctx, clients, load{rate: p.Rate, duration: p.Duration, tuned: c.Tuned})
	return errors.Join(err, m.stop(r))
}
