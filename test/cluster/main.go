// SPDX-License-Identifier: Apache-2.0

// Program cluster starts a real Kubernetes of one or more nodes on one machine, for tests: etcd, API server, controller
// manager, scheduler, and on each node containerd, kubelet and kube-proxy, with each node in its own namespaces. See
// README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/test/testutil/clusterfile"
)

// init keeps the main thread for the main goroutine. So no goroutine that enters a namespace runs on it, and
// /proc/PID/ns/net, which is that of the main thread, always is the namespace of the process.
func init() { runtime.LockOSThread() }

// command is a command of the program.
type command struct {
	name, args, help string
	run              func(ctx context.Context, o *options, args []string) error
	flags            func(fs *flag.FlagSet, o *options)
}

func commands() []command {
	return []command{
		{name: "build", help: "build the missing programs into the cache folder", run: runBuild,
			flags: func(fs *flag.FlagSet, o *options) { kubernetesFlag(fs, o); cniFlag(fs, o) }},
		{name: "up", help: "build missing programs, start a cluster, and wait until it works", run: runUp,
			flags: func(fs *flag.FlagSet, o *options) {
				fs.IntVar(&o.nodes, "nodes", 1, fmt.Sprintf("number of nodes, 1 to %d", maxNodes))
				kubernetesFlag(fs, o)
				cniFlag(fs, o)
				fs.StringVar(&o.proxyMode, "proxy-mode", "iptables", "kube-proxy's mode: iptables or nftables")
				fs.StringVar(&o.snapshotter, "snapshotter", defaultSnapshotter,
					"containerd's: overlayfs, or erofs, which needs a mkfs.erofs in $PATH that reads archives (1.7 or later)")
				fs.DurationVar(&o.nodeGrace, "node-grace", nodeGrace,
					"how long until a node without a lease counts as dead; Kubernetes' own is 50s")
				fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "time limit, not including the build")
			}},
		{name: "down", help: "remove every trace of a cluster, also after an interrupted up or down", run: runDown,
			flags: func(fs *flag.FlagSet, o *options) {
				fs.BoolVar(&o.keepLogs, "keep-logs", false, "leave the folder with logs and keys")
			}},
		{name: "status", help: "update DIR/cluster.json and print it", run: runStatus},
		{name: "node-kill", args: "NODE", help: "cut the power of a node: processes, pods and link end at once",
			run: runNodeKill},
		{name: "node-start", args: "NODE", help: "start a killed node again, as after a reboot", run: runNodeStart},
		{name: "restart-proxy", help: "restart all kube-proxies in a mode and flush the old rules",
			run: runRestartProxy,
			flags: func(fs *flag.FlagSet, o *options) {
				fs.StringVar(&o.proxyMode, "proxy-mode", "iptables", "iptables or nftables")
			}},
		{name: "stop-apiserver", help: "kill the API server; it stays away until start-apiserver", run: runStopAPIServer},
		{name: "start-apiserver", help: "start it again and wait until it is ready", run: runStartAPIServer},
		{name: "exec", args: "COMMAND...",
			help: "run a command in the namespaces of a node, of the client or of the control plane", run: runExec,
			flags: func(fs *flag.FlagSet, o *options) {
				fs.StringVar(&o.node, "node", "", "the node's name")
				fs.BoolVar(&o.client, "client", false, "the client host on the LAN (network namespace only)")
				fs.BoolVar(&o.control, "control", false, "the control plane")
			}},
		{name: "kubectl", args: "ARGS...", help: "run kubectl against the cluster", run: runKubectl},
		{name: "push", args: "IMAGE.tar REFERENCE", help: "put an image into the local registry", run: runPush},
	}
}

func usage() {
	fmt.Fprintf(os.Stderr, "A real Kubernetes %s on this machine, for tests. Usage:\n\n", kubernetesVersion)
	for _, c := range commands() {
		fmt.Fprintf(os.Stderr, "  cluster %-28s %s\n", c.name+" "+c.args, c.help)
	}
	fmt.Fprintf(os.Stderr, `
Every command takes --name NAME (default %q) and --dir DIR (default /var/tmp/wangell-cluster-NAME).
"cluster COMMAND -h" prints the other flags of a command.
`, defaultName)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		var own ownError
		if errors.As(err, &own) {
			os.Exit(own.ExitCode())
		}
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		usage()
		return flag.ErrHelp
	}
	// Programs that `up` starts from its copy of itself.
	switch {
	case args[0] == "machine" && len(args) == 2:
		return runMachine(args[1])
	case args[0] == "machine-inside" && len(args) == 2:
		return runMachineInside(args[1])
	case args[0] == "hub" && len(args) == 4:
		return runHub(args[1], args[2], args[3])
	}
	// The programs of a cluster outlive this command. They must not inherit files of its caller, such as a lock.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("set close-on-exec on inherited files: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		var o options
		fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
		fs.Usage = func() {
			fmt.Fprintf(fs.Output(), "cluster %s [flags] %s\n%s\n", c.name, c.args, c.help)
			fs.PrintDefaults()
		}
		fs.StringVar(&o.name, "name", defaultName, "the cluster's name")
		fs.StringVar(&o.dir, "dir", "", "the cluster's folder (default /var/tmp/wangell-cluster-NAME)")
		if c.flags != nil {
			c.flags(fs, &o)
		}
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if !validName.MatchString(o.name) {
			return fmt.Errorf("--name %q: use at most 20 lower-case letters, digits and dashes, a letter first", o.name)
		}
		return c.run(ctx, &o, fs.Args())
	}
	usage()
	return fmt.Errorf("no command %q", args[0])
}

func kubernetesFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.kubernetes, "kubernetes", kubernetesVersion, "version of Kubernetes: "+kubernetesVersion+" or one of "+
		strings.Join(slices.Sorted(maps.Keys(otherEtcds)), ", "))
}

func cniFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.cni, "cni", cniBridge, "pod network: bridge (plain routes between nodes), flannel or cilium (vxlan)")
}

func runBuild(ctx context.Context, o *options, _ []string) error {
	source, err := findSource()
	if err != nil {
		return err
	}
	bin, err := build(ctx, source, o.kubernetes, o.cni, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println(bin)
	return nil
}

func runUp(ctx context.Context, o *options, _ []string) error {
	p, err := newPlan(o.name, o.folder(), o.cni, o.proxyMode, o.nodes)
	if err != nil {
		return err
	}
	if o.nodeGrace < time.Second {
		return fmt.Errorf("--node-grace %s: at least 1s", o.nodeGrace)
	}
	p.NodeGrace, p.Kubernetes = o.nodeGrace, o.kubernetes
	switch o.snapshotter {
	case defaultSnapshotter:
	case erofs.Snapshotter:
		if p.Erofs, err = erofs.Find(ctx, os.Getenv("PATH")); err != nil {
			return fmt.Errorf("--snapshotter: %w", err)
		}
	default:
		return fmt.Errorf("--snapshotter %q: want %s or %s", o.snapshotter, defaultSnapshotter, erofs.Snapshotter)
	}
	source, err := findSource()
	if err != nil {
		return err
	}
	bin, err := build(ctx, source, o.kubernetes, o.cni, os.Stdout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := up(ctx, p, bin, os.Stdout); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	fmt.Printf("cluster %s is up: export KUBECONFIG=%s; %s\n", p.Name, filepath.Join(p.Dir, "admin.conf"),
		filepath.Join(bin, "kubectl"))
	return nil
}

func runDown(_ context.Context, o *options, _ []string) error {
	dir := o.folder()
	if s, err := loadState(dir); err == nil && s.Name != o.name {
		return fmt.Errorf("%s holds cluster %s, not %s: give its --name", dir, s.Name, o.name)
	}
	if err := down(o.name, dir, o.keepLogs); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	return nil
}

func runStatus(ctx context.Context, o *options, _ []string) error {
	s, unlock, err := openState(o)
	if err != nil {
		return err
	}
	defer unlock()
	for i := range s.Nodes {
		if s.Nodes[i].Up {
			if err := refreshNode(ctx, &s.Nodes[i]); err != nil {
				return err
			}
		}
	}
	if err := s.save(); err != nil {
		return err
	}
	b, err := os.ReadFile(clusterfile.Path(s.Dir))
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}

func runExec(ctx context.Context, o *options, args []string) error {
	s, err := loadState(o.folder())
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("exec: say what to run: exec --node node-1 -- COMMAND")
	}
	var enter []string
	var cgroup string
	inside := func(pid int) []string {
		return []string{fmt.Sprintf("--target=%d", pid), "--net", "--mount", "--uts", "--pid", "--cgroup"}
	}
	switch {
	case o.node != "":
		n, err := s.node(o.node)
		if err != nil {
			return err
		}
		if !n.Up {
			return fmt.Errorf("exec: %s is down: node-start %s", n.Name, n.Name)
		}
		enter, cgroup = inside(n.HolderPid), n.Cgroup
	case o.client:
		enter = []string{"--net=" + s.Client.NetnsPath}
	case o.control:
		enter, cgroup = inside(s.ControlPlane.HolderPid), plan{Name: s.Name}.cgroup(controlMachine)
	default:
		return errors.New("exec: say where: --node NAME, --client or --control")
	}
	if cgroup != "" {
		if err := joinCgroup(filepath.Join(cgroup, "system")); err != nil {
			return fmt.Errorf("exec: %w", err)
		}
	}
	return passThrough(ctx, s, "nsenter", append(append(enter, "--"), args...)...)
}

func runKubectl(ctx context.Context, o *options, args []string) error {
	s, err := loadState(o.folder())
	if err != nil {
		return err
	}
	return passThrough(ctx, s, filepath.Join(s.Bin, "kubectl"),
		append([]string{"--kubeconfig=" + s.Kubeconfig}, args...)...)
}

// passThrough runs a program with the standard input and output of this one.
func passThrough(ctx context.Context, s *state, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "PATH="+s.Bin+":"+os.Getenv("PATH"))
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return ownError{exit}
	case err != nil:
		return fmt.Errorf("%s: %w", strings.Join(append([]string{filepath.Base(program)}, args...), " "), err)
	}
	return nil
}

// ownError is the exit status of a program that has printed what was wrong itself.
type ownError struct{ *exec.ExitError }
