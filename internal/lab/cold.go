// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/testutil/netlab"
)

// ColdConfig configures Cold.
type ColdConfig struct {
	// Wangell is the program to measure. Default: this one.
	Wangell string
	// Requests is how many cold requests are measured. Default: 30, or 5 if Quick.
	Requests int
	// Quick makes fewer requests: to see that it works, not to trust the numbers.
	Quick bool
	// Image is a tarball of an image that answers GET / with status 200 on port Port, and Tag its name. Default: the
	// hello image, which the Go toolchain compiles.
	Image, Tag string
	Port       int32
	// Progress is called after every sample; it may be nil.
	Progress func(done, total int)

	// floor is the command line of the floor process. Default: Wangell, "lab", "floor".
	floor []string
}

// pauseMax is the longest pause before a sample. Pauses are random, so that samples do not lock onto somebody's tick.
const pauseMax = 300 * time.Millisecond

// ColdSample is one cold request. Times are in milliseconds since just before connect().
type ColdSample struct {
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	Done      float64 `json:"done_ms"`
	// Wake is what the instance itself says of this wake.
	Wake *lifecycle.Waterfall `json:"wake,omitempty"`
	// Error tells why the request was lost; empty if it was answered.
	Error string `json:"error,omitempty"`
}

// ColdRaw are all samples of Cold, in the order in which they were taken.
type ColdRaw struct {
	Floor []FloorSample `json:"floor"`
	Cold  []ColdSample  `json:"cold"`
}

func (c ColdConfig) withDefaults() (ColdConfig, error) {
	switch {
	case c.Requests < 0:
		return c, fmt.Errorf("lab cold: %d requests: want at least 1", c.Requests)
	case c.Image != "" && (c.Tag == "" || c.Port == 0):
		return c, fmt.Errorf("lab cold: image %s: tell its tag and port too", c.Image)
	case c.Requests == 0 && c.Quick:
		c.Requests = 5
	case c.Requests == 0:
		c.Requests = 30
	}
	if c.Image == "" {
		c.Tag, c.Port = image.HelloTag, 8080
	}
	if c.Wangell == "" {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("lab cold: find this program: %w", err)
		}
		c.Wangell = self
	}
	if c.floor == nil {
		c.floor = []string{c.Wangell, "lab", "floor"}
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	return c, nil
}

// service is what is measured.
func (c ColdConfig) service() v1alpha1.WangellService {
	return v1alpha1.WangellService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "cold", Namespace: "default"},
		Spec:       v1alpha1.WangellServiceSpec{Image: c.Tag, Port: 80, TargetPort: c.Port, IdleTimeout: 3600},
	}
}

// Cold measures how long a request to a sleeping service takes, in turn with the floor: how long the same container
// takes until it answers when the same runtime starts it and nothing of Wangell is in the way.
func Cold(ctx context.Context, cfg ColdConfig) (_ *Report, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	u, err := newUp(cfg.Wangell, netlab.DefaultServices)
	if err != nil {
		return nil, fmt.Errorf("lab cold: %w", err)
	}
	defer func() {
		if closeErr := u.close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("lab cold: clean up: %w", closeErr))
		}
	}()
	r, err := measureCold(ctx, cfg, u)
	if err != nil {
		return nil, fmt.Errorf("lab cold: %w", err)
	}
	return r, nil
}

func measureCold(ctx context.Context, cfg ColdConfig, u *up) (_ *Report, err error) {
	if err := u.load(ctx, cfg.Image); err != nil {
		return nil, err
	}
	manifest, err := manifestOf(cfg.service())
	if err != nil {
		return nil, err
	}
	if err := u.start(ctx, manifest); err != nil {
		return nil, err
	}
	floor, err := u.floor(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := floor.stop(); stopErr != nil {
			err = errors.Join(err, stopErr)
		}
	}()
	m := &coldRun{cfg: cfg, up: u, floor: floor, name: "default/cold"}
	address, err := u.address(ctx)
	if err != nil {
		return nil, err
	}
	m.address = address.String()
	loadBefore := loadAverage()
	if err := m.run(ctx); err != nil {
		return nil, err
	}
	versions := MachineVersions()
	programs, err := u.control.Versions(ctx)
	if err != nil {
		return nil, err
	}
	for program, version := range programs {
		versions[program] = version
	}
	r := coldReport(m.raw, m.retransmits)
	r.Versions = versions
	r.Params = map[string]any{
		"requests": cfg.Requests, "uncounted requests before": 1, "image": cfg.Tag, "target port": cfg.Port,
		"longest random pause before a sample (ms)": ms(pauseMax), "floor: pause between attempts (ms)": ms(FloorPoll),
		"load average at begin": loadBefore, "load average at end": loadAverage(),
	}
	return r, nil
}

// manifestOf writes a service as a manifest: without a status, which is not the user's to give.
func manifestOf(s v1alpha1.WangellService) ([]byte, error) {
	return yaml.Marshal(map[string]any{"apiVersion": s.APIVersion, "kind": s.Kind,
		"metadata": map[string]string{"name": s.Name, "namespace": s.Namespace},
		"spec":     map[string]any{"image": s.Spec.Image, "port": s.Spec.Port, "targetPort": s.Spec.TargetPort, "idleTimeout": s.Spec.IdleTimeout}})
}

// coldRun takes the samples.
type coldRun struct {
	cfg         ColdConfig
	up          *up
	floor       *floorProcess
	name        string
	address     string
	raw         ColdRaw
	retransmits uint64
}

// run takes samples of both kinds in turn; the first of each is not counted.
func (m *coldRun) run(ctx context.Context) error {
	for i := range m.cfg.Requests + 1 {
		if err := m.both(ctx); err != nil {
			return err
		}
		if i == 0 {
			m.raw, m.retransmits = ColdRaw{}, 0
			continue
		}
		m.cfg.Progress(i, m.cfg.Requests)
	}
	return nil
}

func (m *coldRun) both(ctx context.Context) error {
	if err := pause(ctx); err != nil {
		return err
	}
	floor, err := m.floor.sample()
	if err != nil {
		return err
	}
	m.raw.Floor = append(m.raw.Floor, floor)
	if err := m.up.sleep(ctx, m.name); err != nil {
		return err
	}
	if err := pause(ctx); err != nil {
		return err
	}
	cold, err := m.cold(ctx)
	if err != nil {
		return err
	}
	m.raw.Cold = append(m.raw.Cold, cold)
	return nil
}

// cold does one cold request. Only what makes further samples pointless is an error; a lost request is a sample.
func (m *coldRun) cold(ctx context.Context) (s ColdSample, err error) {
	client := m.up.net.Client()
	before, err := client.SYNRetransmits()
	if err != nil {
		return s, err
	}
	t, requestErr := request(ctx, client.Dialer().DialContext, m.address, m.address)
	if ctx.Err() != nil {
		return s, ctx.Err()
	}
	s = ColdSample{Connected: ms(t.Connected), FirstByte: ms(t.FirstByte), Done: ms(t.Done)}
	if requestErr != nil {
		s.Error = requestErr.Error()
	}
	after, err := client.SYNRetransmits()
	if err != nil {
		return s, err
	}
	m.retransmits += after - before
	if requestErr == nil {
		// The client can be answered before the instance has heard that the pod listens; to sleep now would cancel the wake.
		if err := m.up.until(ctx, m.woken); err != nil {
			return s, err
		}
	}
	// Once the service sleeps again, the instance has heard everything about this wake.
	if err := m.up.sleep(ctx, m.name); err != nil {
		return s, err
	}
	s.Wake, err = m.lastWake(ctx)
	return s, err
}

// woken fails as long as the last wake is under way.
func (m *coldRun) woken(ctx context.Context) error {
	w, err := m.lastWake(ctx)
	if err == nil && (w == nil || w.Result == lifecycle.ResultRunning) {
		err = fmt.Errorf("the wake of %s is not over although its client was answered", m.name)
	}
	return err
}

// lastWake returns the service's last wake; nil if there was none.
func (m *coldRun) lastWake(ctx context.Context) (*lifecycle.Waterfall, error) {
	wakes, err := m.up.control.Wakes(ctx, m.name)
	if err != nil || len(wakes) == 0 {
		return nil, err
	}
	return &wakes[len(wakes)-1], nil
}

// pause waits a random time, up to pauseMax.
func pause(ctx context.Context) error {
	select {
	case <-time.After(rand.N(pauseMax)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
