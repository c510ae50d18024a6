// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/test/testutil/e2e"
)

func TestUserOperatesServices(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "hello", more: "resources: {limits: {memory: 64Mi, cpu: 500m}}"}, service{name: "resting"},
		service{name: "short", idle: 1}, service{name: "clock", idle: 1},
		service{name: "pair", more: "containers: [{name: second, image: " + serverTag +
			", env: [{name: PORT, value: '8081'}, {name: VERSION, value: of the second}]}]\n" +
			"initContainers: [{name: first, image: " + serverTag + ", env: [{name: MODE, value: done}]}]"})
	if out := l.must(t, "restart", "hello"); !strings.Contains(out, "nothing to restart") {
		t.Errorf("restart of a service that sleeps: %s", out)
	}
	if out := l.must(t, "wake", "hello"); !strings.HasPrefix(out, "hello serves (") {
		t.Errorf("wake: %s", out)
	}
	hello := l.address(t, "hello")

	// A restart under load loses no request.
	before := l.service(t, "hello").Pods[0].ID
	load := l.load(t, hello, newConnections)
	for range 3 {
		if out := l.must(t, "restart", "hello"); !strings.Contains(out, "(1 replaced, ") {
			t.Errorf("restart: %s", out)
		}
	}
	load.Stop(t)
	// The pods before it end with their connections.
	if pods := l.until(t, "hello", "single pod", hasPod("serving")).Pods; pods[0].ID == before {
		t.Errorf("the pod after the restart is the one before it: %+v", pods)
	}

	var uses []view.PodUse
	if err := decode(l.must(t, "stats", "hello", "-o", "json"), &uses); err != nil || len(uses) != 1 ||
		uses[0].CPUSeconds <= 0 || uses[0].MemoryBytes == 0 || uses[0].MemoryLimitBytes != 64<<20 {
		t.Errorf("stats: %v: %+v", err, uses)
	}
	if table := l.must(t, "stats"); !strings.Contains(table, "64.0 Mi") || strings.Contains(table, "resting") {
		t.Errorf("stats:\n%s", table)
	}

	// The command's exit code and output are passed on; the service is woken for it.
	command := func(args ...string) *exec.Cmd {
		return l.Node.Command(t.Context(), append([]string{program, "--run-dir", l.run, "exec"}, args...)...)
	}
	cmd := command("-e", "MODE=exit", "resting", "--", "/server", "--help")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 3 ||
		stderr.String() != "server: no configuration: /etc/app.conf is missing\n" {
		t.Errorf("exec: %v: %q", err, stderr.String())
	}
	l.until(t, "resting", "the woken pod", isState("Warm"))
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{1, "nobody", []string{"nobody", "--", "/server"}},
		{1, `no pod "x"`, []string{"--pod", "x", "hello", "/server"}},
		{127, `container hello (image ` + serverTag + `) has no program "none"`, []string{"hello", "--", "none"}},
		{127, `has no program "/none"`, []string{"hello", "--", "/none"}},
		{126, `container second (image ` + serverTag + `) cannot run "/proc": permission denied`,
			[]string{"-c", "second", "pair", "--", "/proc"}},
		{1, "container first is an init container, which has ended before the others started: run the command in another " +
			"one (-c pair or -c second), or see 'wangell logs pair -c first'", []string{"-c", "first", "pair", "/server"}},
		{126, `chdir to cwd ("/none")`, []string{"-w", "/none", "hello", "--", "/server"}},
	} {
		out, err := command(c.args...).CombinedOutput()
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("exec %v: %v: %s", c.args, err, out)
		}
	}

	// Containers of a pod are told apart.
	e2e.MustAsk(t, l.Client(), l.address(t, "pair"))
	if err := decode(l.must(t, "stats", "pair", "-o", "json"), &uses); err != nil || len(uses) != 2 ||
		uses[0].Container != "pair" || uses[1].Container != "second" || uses[1].CPUSeconds <= 0 {
		t.Errorf("stats of two containers: %v: %+v", err, uses)
	}
	for _, args := range [][]string{
		{"-c", "second", "-e", "MODE=exit", "pair", "--", "/server"},
		{"pair", "-c", "second", "-e", "MODE=exit", "--", "/server"},
		{"-e", "MODE=exit", "pair", "-c", "second", "/server", "-c", "pair"},
	} {
		var exitOfSecond *exec.ExitError
		out, err := command(args...).CombinedOutput()
		if !errors.As(err, &exitOfSecond) || exitOfSecond.ExitCode() != 3 {
			t.Errorf("exec %q: %v: %s", args, err, out)
		}
	}
	if _, err := l.wangell("logs", "pair", "-c", "third"); err == nil ||
		!strings.Contains(err.Error(), `no container "third": its containers are pair, first, second`) {
		t.Errorf("logs of a container that is not there: %v", err)
	}
	if out, err := command("-c", "third", "pair", "/server").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), `no container "third": its containers are pair, first, second`) {
		t.Errorf("exec in a container that is not there: %v: %s", err, out)
	}
	first, second := l.must(t, "logs", "pair"), l.must(t, "logs", "pair", "-c", "second")
	if strings.Contains(first, "8081") || !strings.Contains(second, "8081") {
		t.Errorf("logs of the containers: %q and %q", first, second)
	}

	// A service stays awake while a command runs in it, and falls asleep afterwards.
	cmd = command("-e", "MODE=deaf", "short", "/server")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.until(t, "short", "wake", isState("Warm"))
	pod := l.service(t, "short").Pods[0].ID
	for range 2 { // one with the same idle timeout is woken after it and sleeps before it
		e2e.MustAsk(t, l.Client(), l.address(t, "clock"))
		l.untilAsleep(t, "clock")
	}
	if pods := l.service(t, "short").Pods; len(pods) != 1 || pods[0].ID != pod || pods[0].State != "serving" {
		t.Errorf("while a command runs: %+v", pods)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("exec that is interrupted: %v", err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		cmd = command("-e", "MODE=deaf", "short", "/server")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command runs", func() bool { return l.deafIn(t, "short") == 1 })
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if s == syscall.SIGKILL {
			eventually(t, "the command ends with its client", func() bool { return l.deafIn(t, "short") == 0 })
		} else if !errors.As(err, &exit) || exit.ExitCode() != 128+int(s) {
			t.Errorf("exec that gets %v: %v", s, err)
		}
		if n := l.deafIn(t, "short"); n > 0 {
			t.Errorf("%v has left %d commands in the container", s, n)
		}
	}
	l.untilAsleep(t, "short")
	e2e.MustAsk(t, l.Client(), l.address(t, "short"))
}

// deafIn returns how many commands run in the pods of a service whose mode is deaf.
func (l *lab) deafIn(t *testing.T, name string) (n int) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.service(t, name).Pods {
		for _, dir := range processes {
			groups, _ := os.ReadFile(dir + "/cgroup") // a process that has ended has nothing to read
			env, _ := os.ReadFile(dir + "/environ")
			if strings.Contains(string(groups), p.ID) && strings.Contains(string(env), "MODE=deaf") {
				n++
			}
		}
	}
	return n
}
