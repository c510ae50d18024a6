// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/machine/manifest"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/internal/status"
)

// upFlags holds the flags of up.
type upFlags struct {
	places
	files                   []string
	addresses, podAddresses string
	zram                    string
	config                  instance.Config
	egress                  bool
	out                     output
}

// snapshotters are the ones that come with containerd, for completion. A machine may have others.
var snapshotters = []string{"overlayfs", "native", "btrfs", "erofs", "zfs", "devmapper", "blockfile"}

var xdpModes = []string{"auto", "native", "generic", "off"}

func newUp(g *globals) *cobra.Command {
	u := &upFlags{places: places{g: g}}
	cmd := &cobra.Command{
		Use:   "up -f FILE|DIR|-",
		Short: "Run the services of manifests on this machine until Ctrl-C",
		Long: `Run the services of manifests on this machine: give each an address, attach the gate,
and start a container at the first SYN to its service. Changes to the files are applied.

Needs root. Ctrl-C, SIGTERM or the end of its terminal stops everything and leaves nothing
behind; a second one does not wait for containers to exit by themselves. If 'wangell up' is
killed, the next one takes over what it left, and 'wangell down' removes it.

On a terminal, a table of the services stays below the log. Elsewhere, the log goes to
standard error, and the line "ready" to standard output.`,
		GroupID: groupRun,
		Example: `  sudo wangell up -f hello.yaml
  sudo wangell up -f services/ --interface eth0 --addresses 10.46.100.0/24
  sudo wangell up -f hello.yaml --wake-budget-source 20,1 --wake-budget-service 10,0.1
  sudo wangell up -f hello.yaml --ui
  sudo wangell up -f cache.yaml --zram 2Gi
  sudo wangell up -f hello.yaml --snapshotter btrfs --state-dir /srv/wangell
  cat hello.yaml | sudo wangell up -f - -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd) },
	}
	f := cmd.Flags()
	u.register(cmd)
	f.StringArrayVarP(&u.files, "file", "f", nil,
		"manifest, folder of manifests, or - for standard input (repeatable, required)")
	f.StringVar(&u.addresses, "addresses", instance.DefaultAddresses.String(), "range of service addresses")
	f.StringVar(&u.podAddresses, "pod-addresses", instance.DefaultPodAddresses.String(),
		"range of pod addresses; those of the machine's own networks are left out")
	f.StringArrayVar(&u.config.Interfaces, "interface", nil,
		"interface towards clients on other machines (repeatable; default: those with a default route)")
	f.BoolVar(&u.egress, "egress", true,
		"let pods reach other networks, with this machine's address as their source (nftables)")
	f.StringVar(&u.config.ResolvConf, "resolv-conf", "/etc/resolv.conf",
		"file with the resolvers that answer pods about names that are not of services")
	f.StringVar(&u.config.Snapshotter, "snapshotter", containerd.DefaultSnapshotter,
		"containerd's snapshotter for images and the layers of containers: overlayfs, native, btrfs, erofs, ...")
	f.StringVar(&u.config.XDPMode, "xdp-mode", "auto", oneOf(xdpModes))
	addSizes(f, &u.config.Sizes)
	u.config.WakeBudgets = &gate.WakeBudgets{}
	addWakeBudgets(f, u.config.WakeBudgets)
	f.StringArrayVar(&u.config.InsecureRegistries, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST, HOST:PORT or an address range (repeatable)")
	f.StringVar(&u.config.MetricsAddress, "metrics-address", instance.DefaultMetricsAddress,
		"address of the Prometheus metrics; empty to disable them")
	f.StringVar(&u.zram, "zram", "",
		"swap for frozen pods in compressed memory: how much the pods' memory may be, such as 2Gi (default: no zram)")
	f.StringVar(&u.config.Envoy, "envoy", instance.EnvoyAuto,
		"path of Envoy, for services with balancing.level: Request; auto: from PATH")
	f.StringVar(&u.config.UIAddress, "ui", "",
		"serve the dashboard for browsers, and print its address; --ui=ADDRESS to choose IP:PORT")
	f.Lookup("ui").NoOptDefVal = dashboard.DefaultAddress
	f.BoolVar(&u.config.UIActions, "ui-actions", false, "let users of the dashboard put services to sleep")
	u.out.RegisterTo(cmd)
	completeValues(cmd, "xdp-mode", xdpModes)
	completeValues(cmd, "snapshotter", snapshotters)
	_ = cmd.MarkFlagFilename("file", "yaml", "yml", "json") // the flag exists
	return cmd
}

func (u *upFlags) run(cmd *cobra.Command) error {
	if len(u.files) == 0 {
		return usage(cmd, "-f is missing: name a manifest, a folder of manifests, or - for standard input")
	}
	if u.config.UIActions && u.config.UIAddress == "" {
		return usage(cmd, "--ui-actions without --ui: add --ui, or use 'wangell dashboard --ui-actions'")
	}
	config := u.config
	config.NoEgress = !u.egress
	config.RunDir, config.StateDir, config.Containerd = u.g.runDir, u.stateDir, u.containerd
	for _, r := range []struct {
		flag, text string
		to         *netip.Prefix
	}{{"addresses", u.addresses, &config.Addresses}, {"pod-addresses", u.podAddresses, &config.PodAddresses}} {
		prefix, err := netip.ParsePrefix(r.text)
		if err != nil {
			return usage(cmd, "--%s %q: want an IPv4 range, such as %s", r.flag, r.text, instance.DefaultAddresses)
		}
		*r.to = prefix
	}
	if u.zram != "" {
		size, err := resource.ParseQuantity(u.zram)
		if err != nil {
			return usage(cmd, "--zram %q: want a number of bytes, such as 512Mi or 2Gi", u.zram)
		}
		config.Zram = size.Value()
	}
	if err := config.Validate(); err != nil {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	}
	show, err := u.newShow(cmd)
	if err != nil {
		return err
	}
	shortenSlices()
	cli.OutlivePipes() // the log's reader may end before this process, as tee does by the same Ctrl-C
	force, stop := secondSignal()
	defer stop()
	err = instance.Up(cmd.Context(), instance.Options{
		Config: config, Manifests: manifest.NewReader(u.files, os.Stdin), Log: show.log, Force: force,
		Started: show.started, Ready: func() { show.ready(); trimResident(show.log) },
	})
	show.close()
	return err
}

// secondSignal returns a context that ends with the second of cli.EndSignals. The third one kills the process.
func secondSignal() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, cli.EndSignals()...)
	go func() {
		for range 2 {
			select {
			case <-signals:
			case <-ctx.Done():
			}
		}
		signal.Stop(signals)
		cancel()
	}()
	return ctx, cancel
}

// patience is how long a terminal or pipe that does not accept output may delay the exit.
const patience = time.Second

// show is the output of up: a live view, JSON lines or a log. The instance never waits for it.
type show struct {
	log     *slog.Logger
	started func(*controller.Controller)
	ready   func()
	close   func()
}

func (u *upFlags) newShow(cmd *cobra.Command) (show, error) {
	if u.out == cli.OutputTable && u.g.logFormat == "text" && view.IsTerminal(os.Stdout) {
		return u.showLive(cmd)
	}
	queue := view.NewQueue(os.Stderr)
	log, err := u.g.logger(cmd, queue)
	if err != nil {
		return show{}, err
	}
	s := show{
		log: log, started: func(*controller.Controller) {},
		ready: func() { fmt.Println("ready") }, close: func() { queue.Close(patience) },
	}
	if u.out == cli.OutputJSON {
		s.toJSON()
	}
	return s, nil
}

// showLive returns a show with the log scrolling above the table.
func (u *upFlags) showLive(cmd *cobra.Command) (show, error) {
	live := view.NewLive(os.Stdout)
	queue := view.NewQueue(live)
	log, err := u.g.logger(cmd, queue)
	return show{
		log:     log,
		started: func(c *controller.Controller) { live.Follow(c) },
		ready:   func() { fmt.Fprintln(queue, "ready") },
		close:   func() { queue.Close(patience); live.Close(patience) },
	}, err
}

// eventReady is the kind of the event that reports that up is ready.
const eventReady status.EventKind = "ready"

// toJSON makes s write events to standard output as well, one line of JSON each.
func (s *show) toJSON() {
	ctx, cancel := context.WithCancel(context.Background())
	queue := view.NewQueue(os.Stdout)
	write := func(e status.Event) {
		if line, err := json.Marshal(e); err == nil {
			_, _ = queue.Write(append(line, '\n')) // a queue accepts everything
		}
	}
	var writing sync.WaitGroup
	s.started = func(c *controller.Controller) {
		events := c.Subscribe(ctx)
		writing.Go(func() {
			for e := range events {
				write(e)
			}
		})
	}
	s.ready = func() { write(status.Event{Time: time.Now(), Kind: eventReady}) }
	closeLog := s.close
	s.close = func() {
		cancel()
		writing.Wait()
		queue.Close(patience)
		closeLog()
	}
}
