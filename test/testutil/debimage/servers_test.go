// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// start runs the command of an image on the node of a network, in the image's root file system and in its own mount and
// pid namespaces.
func start(t *testing.T, node *netlab.Namespace, r Recipe) (exited <-chan error, out *syncbuf.Buffer) {
	t.Helper()
	ctx := testContext(t)
	b, err := Build(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	extract(t, mutate.Extract(b.Image), root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	user := r.User
	if user == "" {
		user = "0:0"
	}
	// Everything execs, so the command is the first process of its pid namespace, and its exit ends the namespace.
	script := `mount --make-rprivate / && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&
		exec chroot --userspec="$1" "$0" "${@:2}"`
	cmd := node.Command(ctx, append([]string{"bash", "-c", script, root, user}, r.Entrypoint...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out = &syncbuf.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(r.Env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, result := make(chan struct{}), make(chan error, 1)
	go func() {
		result <- cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("%s wrote:\n%s", r.Name, out)
		}
	})
	return result, out
}

// extract unpacks a layer as a root file system.
func extract(t *testing.T, r io.ReadCloser, root string) {
	t.Helper()
	defer r.Close()
	cmd := exec.Command("tar", "-x", "-p", "--numeric-owner", "-C", root)
	cmd.Stdin = r
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}

// dial connects as soon as the server listens.
func dial(t *testing.T, from *netlab.Namespace, address string, exited <-chan error) net.Conn {
	t.Helper()
	for ctx := testContext(t); ; time.Sleep(10 * time.Millisecond) {
		c, err := from.Dialer().DialContext(ctx, "tcp4", address)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			return c
		}
		select {
		case err := <-exited:
			t.Fatalf("the server ended before it listened: %v", err)
		case <-ctx.Done():
			t.Fatal(err)
		default:
		}
	}
}

// Each server answers a client on another host in its own protocol.
func TestServersAnswerClientsOnOtherHosts(t *testing.T) {
	for _, test := range []struct {
		recipe Recipe
		ask    string
		want   string // the answer's first line begins with it
		// client is a real client, used if the machine has it. %s stands for the server's address.
		client []string
		prints string
	}{
		{Nginx(), "GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK",
			[]string{"curl", "-sS", "-m", "20", "http://%s:8080/"}, "nginx\n"},
		{Redis(), "PING\r\n", "+PONG", []string{"redis-cli", "-h", "%s", "echo", "hello"}, "hello\n"},
		// An SSLRequest (PostgreSQL's documentation, 55.2.10), which a server without a certificate refuses.
		{Postgres(), "\x00\x00\x00\x08\x04\xd2\x16\x2f", "N",
			[]string{"psql", "-h", "%s", "-U", "postgres", "-Atc", "select 6*7"}, "42\n"},
		{SSH(), "", "SSH-2.0-OpenSSH", []string{"ssh", "-F", "/dev/null", "-o", "StrictHostKeyChecking=no",
			"-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=60",
			"root@%s", "echo", "hello"}, "hello\n"},
	} {
		t.Run(test.recipe.Name, func(t *testing.T) {
			n := netlabtest.New(t, netlab.Config{})
			exited, _ := start(t, n.Node, test.recipe)
			c := dial(t, n.Client(), fmt.Sprintf("%s:%d", n.Node.Addr, test.recipe.Port), exited)
			defer c.Close()
			if _, err := io.WriteString(c, test.ask); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(test.want))
			if _, err := io.ReadFull(bufio.NewReader(c), got); err != nil || string(got) != test.want {
				t.Fatalf("answer %q, %v; want %q", got, err, test.want)
			}
			if _, err := exec.LookPath(test.client[0]); err != nil {
				t.Logf("no %s on this machine: only the protocol was tried", test.client[0])
				return
			}
			for i := range test.client {
				test.client[i] = strings.Replace(test.client[i], "%s", n.Node.Addr.String(), 1)
			}
			cmd := n.Client().Command(testContext(t), test.client...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if out, err := cmd.Output(); err != nil || string(out) != test.prints {
				t.Errorf("%s: %v: %q, want %q\n%s", test.client[0], err, out, test.prints, &stderr)
			}
		})
	}
}

func TestExitsAtOnceReportsWhy(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	exited, out := start(t, n.Node, ExitsAtOnce())
	var status *exec.ExitError
	err := <-exited
	if !errors.As(err, &status) || status.ExitCode() != 3 ||
		!strings.Contains(out.String(), "/etc/app.conf is missing") {
		t.Errorf("ended with %v and wrote %q", err, out)
	}
}

func TestNeverListensRuns(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	exited, _ := start(t, n.Node, NeverListens())
	select {
	case err := <-exited:
		t.Errorf("it ended: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
}

// The dynamic linker needs the target of every symbolic link to a library.
func TestLibraryLinksHaveTargets(t *testing.T) {
	for _, r := range []Recipe{Nginx(), Redis(), Postgres(), SSH()} {
		b, err := Build(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		names, links := map[string]bool{}, map[string]string{}
		archive := mutate.Extract(b.Image)
		for members := tar.NewReader(archive); ; {
			h, err := members.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Clean("/" + h.Name)
			names[name] = true
			if h.Typeflag == tar.TypeSymlink && strings.Contains(name, ".so") {
				links[name] = h.Linkname
			}
		}
		archive.Close()
		for name, target := range links {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(name), target)
			}
			if !names[merge(target)] {
				t.Errorf("%s: %s leads to %s, which is not there", r.Name, name, target)
			}
		}
	}
}
