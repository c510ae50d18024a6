// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/commands"
	"wangell.loutres.me/internal/status"
)

// Exit codes of exec beside those of the command, as shells have them.
const (
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = 128 // plus the number of the signal
)

// execFlags holds the flags of exec.
type execFlags struct {
	g         *globals
	stdin     bool
	tty       bool
	pod       string
	container string
	env       []string
	dir       string
}

func newExec(g *globals) *cobra.Command {
	f := &execFlags{g: g}
	cmd := &cobra.Command{
		Use:   "exec NAME [--] COMMAND [ARGUMENT...]",
		Short: "Run a command in a container of a service",
		Long: `Run a command in a container of a service, with the user, environment and limits of the
container's own process, and exit with its exit code: 128 + N if signal N has ended it,
127 if the container has no such program, 126 if it cannot be run. A service that sleeps is
woken, and does not fall asleep while the command runs. The command ends with its container,
for example when the manifest changes, with a signal to wangell, and when nobody reads its
output any more. If wangell is killed (kill -9), the command and its children get SIGHUP, and
SIGKILL five seconds later; what setsid has started stays.`,
		GroupID: groupRun,
		Example: `  sudo wangell exec redis -- redis-cli info memory
  sudo wangell exec -it redis sh
  sudo wangell exec shop -c proxy -- cat /etc/hosts
  sudo wangell exec -i postgres -- psql -U postgres < dump.sql`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return commands.ServiceArg(cmd, args)
			}
			return nil
		},
		ValidArgsFunction: g.place().CompleteService,
		RunE: func(cmd *cobra.Command, args []string) error {
			command, err := afterFlags(cmd, args[1:])
			if err != nil {
				return err
			}
			if f.tty && !term.IsTerminal(int(os.Stdin.Fd())) {
				return usage(cmd, "--tty: standard input is no terminal: leave out -t")
			}
			for _, e := range f.env {
				if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
					return usage(cmd, "--env %q: want NAME=VALUE", e)
				}
			}
			return f.run(cmd, args[0], command)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the service are the command's own flags
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input to the command")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal (needs one as standard input)")
	g.place().ContainerFlag(cmd, &f.container, "to run the command in")
	flags.StringVar(&f.pod, "pod", "", "ID of the pod, as 'wangell stats' prints it (default: one that serves)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable for the command, as NAME=VALUE (repeatable)")
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory of the command")
	return cmd
}

// afterFlags parses flags between the service and the command, where kubectl exec has them, and returns the command.
func afterFlags(cmd *cobra.Command, args []string) ([]string, error) {
	flags := cmd.Flags()
	if err := flags.Parse(args); err != nil {
		return nil, usage(cmd, "%w", err)
	}
	if flags.NArg() == 0 {
		return nil, usage(cmd, "name a command to run in the container, such as sh")
	}
	return flags.Args(), nil
}

// run runs the command until it ends, or a signal comes.
func (f *execFlags) run(cmd *cobra.Command, name string, args []string) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context())) // which does not say what has ended it
	defer cancel()
	signal.Ignore(syscall.SIGPIPE) // it would end this process and leave the command
	signals, got := make(chan os.Signal, 1), make(chan syscall.Signal, 1)
	signal.Notify(signals, cli.EndSignals()...)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals) // another one ends this process
			got <- s.(syscall.Signal)
			cancel()
		case <-ctx.Done():
		}
	}()
	err := f.attach(ctx, cmd, name, args)
	select {
	case s := <-got:
		return cli.ExitStatus(exitSignal + int(s))
	default:
	}
	if errors.Is(err, syscall.EPIPE) {
		return cli.ExitStatus(exitSignal + int(syscall.SIGPIPE))
	}
	return err
}

// attach runs the command in its container.
func (f *execFlags) attach(ctx context.Context, cmd *cobra.Command, name string, args []string) error {
	c := f.g.client()
	defer c.Close()
	id := containerd.NewCommandID()
	st, _, release, err := c.Hold(ctx, name, id)
	if err != nil {
		return err
	}
	defer release()
	pod, err := podFor(st, f.pod)
	if err != nil {
		return err
	}
	if err := st.Service.NeedContainer(f.container); err != nil {
		return err
	}
	service := v1alpha1.KeyOf(&st.Service)
	command := containerd.Command{Args: args, ID: id, RunsOnce: st.Service.Spec.IsInit(f.container), Env: f.env,
		Dir: f.dir, Stdout: os.Stdout, Stderr: os.Stderr}
	if f.stdin || f.tty {
		command.Stdin = os.Stdin
	}
	if f.tty {
		restore, size, sizes, err := f.takeTerminal(ctx)
		if err != nil {
			return err
		}
		defer restore()
		command.TTY, command.Size, command.Sizes = true, size, sizes
		command.Env = append([]string{"TERM=" + os.Getenv("TERM")}, command.Env...)
	}
	p := &places{g: f.g, stateDir: instance.DefaultStateDir, containerd: instance.ContainerdAuto}
	return p.withContainerd(cmd, func(_ context.Context, c *client.Client) error {
		code, err := containerd.Attach(ctx, c, containerd.PipesDir(f.g.runDir),
			containerd.ContainerID(pod, service, f.container), command)
		switch {
		case err != nil:
			return f.explain(&st.Service, pod, args[0], err)
		case code != 0:
			return cli.ExitStatus(code)
		}
		return nil
	})
}

// explain says why a program was not run in a container of a service.
func (f *execFlags) explain(s *v1alpha1.WangellService, pod, program string, err error) error {
	if errors.Is(err, containerd.ErrNotRunning) {
		return f.notRunning(s)
	}
	var cannot *containerd.CommandError
	if !errors.As(err, &cannot) {
		return fmt.Errorf("service %s/%s: %s in pod %s: %w", s.Namespace, s.Name, program, pod, err)
	}
	container, image := cmp.Or(f.container, s.Name), s.Spec.Image
	for c := range s.Spec.Others {
		if c.Name == f.container {
			image = c.Image
		}
	}
	where := fmt.Sprintf("service %s/%s: container %s (image %s)", s.Namespace, s.Name, container, image)
	if cannot.NotFound {
		return cli.CodedError{Code: exitNotFound, Err: fmt.Errorf("%s has no program %q: %s", where, program, cannot.Reason)}
	}
	return cli.CodedError{Code: exitCannotRun, Err: fmt.Errorf("%s cannot run %q: %s", where, program, cannot.Reason)}
}

// notRunning says of a container that does not run what to do.
func (f *execFlags) notRunning(s *v1alpha1.WangellService) error {
	container := cmp.Or(f.container, s.Name)
	if !s.Spec.IsInit(container) {
		return fmt.Errorf("service %s/%s: container %s does not run: it has ended, or is about to be started again: "+
			"see 'wangell logs %s -c %s'", s.Namespace, s.Name, container, s.Name, container)
	}
	names := slices.DeleteFunc(s.ContainerNames(), s.Spec.IsInit)
	return fmt.Errorf("service %s/%s: container %s is an init container, which has ended before the others started: "+
		"run the command in another one (-c %s), or see 'wangell logs %s -c %s'", s.Namespace, s.Name, container,
		strings.Join(names, " or -c "), s.Name, container)
}

// podFor returns the pod of a service in which a command is to run: the one with an ID, or the first that serves.
func podFor(st status.Status, id string) (string, error) {
	var ids []string
	for _, p := range st.Pods {
		if p.ID == id || id == "" && p.State == lifecycle.PodServing.String() {
			return p.ID, nil
		}
		ids = append(ids, p.ID)
	}
	if id == "" {
		return "", fmt.Errorf("service %s/%s: it has no pod that serves: try again", st.Service.Namespace, st.Service.Name)
	}
	return "", fmt.Errorf("service %s/%s: it has no pod %q: its pods are %s", st.Service.Namespace, st.Service.Name, id,
		strings.Join(slices.Sorted(slices.Values(ids)), ", "))
}

// takeTerminal hands the terminal to the command, and returns its size, the sizes that it gets, and a function that
// takes it back.
func (f *execFlags) takeTerminal(ctx context.Context) (restore func(), now containerd.Size,
	sizes <-chan containerd.Size, err error) {
	fd := int(os.Stdin.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, now, nil, fmt.Errorf("terminal: %w", err)
	}
	now.Width, now.Height, _ = term.GetSize(fd) // without one, the command finds that its terminal has none
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	out := make(chan containerd.Size)
	go func() {
		for {
			width, height, err := term.GetSize(fd)
			if err == nil {
				select {
				case out <- containerd.Size{Width: width, Height: height}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		signal.Stop(changed)
		_ = term.Restore(fd, before) // the terminal may be gone
	}, now, out, nil
}
