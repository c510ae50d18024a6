// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wangell.loutres.me/test/testutil/freeport"
)

// helloImage compiles the hello server once for all tests.
var helloImage = sync.OnceValues(func() (v1.Image, error) { return Hello(context.Background()) })

// helloProcess is a running hello server.
type helloProcess struct {
	cmd     *exec.Cmd
	address string
	output  *bytes.Buffer // complete once the process has ended
}

// helloBinary extracts the program from the hello image and returns its path.
func helloBinary(t *testing.T) string {
	t.Helper()
	img, err := helloImage()
	if err != nil {
		t.Fatal(err)
	}
	return extract(t, img, "program")
}

// startHello starts the hello server on a free port, with STOP=stop, and returns once it listens.
func startHello(t *testing.T, stop string) *helloProcess {
	t.Helper()
	port := freePort(t)
	p := &helloProcess{cmd: exec.Command(helloBinary(t)), address: "127.0.0.1:" + port, output: &bytes.Buffer{}}
	p.cmd.Env = []string{"PORT=" + port, "STOP=" + stop}
	p.cmd.Stdout = p.output
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	for {
		conn, err := net.Dial("tcp", p.address)
		if err == nil {
			_ = conn.Close()
			t.Log("listens after", time.Since(begin))
			return p
		}
		if time.Since(begin) > 60*time.Second {
			t.Fatal(err)
		}
	}
}

// terminate sends SIGTERM.
func (p *helloProcess) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the process and checks its exit status and output.
func (p *helloProcess) wait(t *testing.T) {
	t.Helper()
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	_, port, _ := net.SplitHostPort(p.address)
	if want := "hello: listening on port " + port + "\nhello: stopped\n"; p.output.String() != want {
		t.Errorf("it wrote %q, want %q", p.output, want)
	}
}

func TestHelloProgramIsStaticAndSmall(t *testing.T) {
	binary := helloBinary(t)
	if out, err := exec.Command("ldd", binary).CombinedOutput(); err == nil {
		t.Errorf("not static: %s", out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 8<<20 {
		t.Errorf("%d bytes, want at most 8 MiB", info.Size())
	}
}

func TestHelloServesOnOneConnection(t *testing.T) {
	p := startHello(t, "")
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	bodies := map[string]bool{}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodGet} {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.address+"/path", strings.NewReader("a=b"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK ||
			!strings.HasPrefix(string(body), "Hello from Wangell\nyou are 127.0.0.1:") {
			t.Errorf("%s: %d %q %v", method, resp.StatusCode, body, err)
		}
		bodies[string(body)] = true
	}
	if len(bodies) != 1 {
		t.Errorf("requests came from several ports: %v", bodies)
	}
	p.terminate(t)
	p.wait(t)
}

func TestHelloSpeaksEveryHTTP1Dialect(t *testing.T) {
	p := startHello(t, "")
	for _, c := range []struct{ request, want string }{
		{"GET / HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n"},
		{"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "Connection: keep-alive\r\n"}, // ab -k
		{"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "Connection: close\r\n"},
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "Served-By: "},
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "Served-At: 127.0.0.1\r\n"},
		{"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "Content-Length: "},
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na=b", "Hello from Wangell\n"},
		{"nonsense\r\n\r\n", "400 Bad Request\r\n"},
	} {
		if got := talk(t, p.address, c.request); !strings.Contains(got, c.want) {
			t.Errorf("%.40q: got %q, want %q in it", c.request, got, c.want)
		}
	}
}

func TestHelloDrainsAsStopSays(t *testing.T) {
	for stop, accepts := range map[string]bool{"serve": true, "refuse": false} {
		t.Run(stop, func(t *testing.T) {
			p := startHello(t, stop)
			kept, err := net.Dial("tcp", p.address)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
			ask := func() string {
				t.Helper()
				_ = kept.SetDeadline(time.Now().Add(60 * time.Second))
				if _, err := io.WriteString(kept, request); err != nil {
					t.Fatal(err)
				}
				answer := make([]byte, 4096)
				n, err := kept.Read(answer)
				if err != nil {
					t.Fatal(err)
				}
				return string(answer[:n])
			}
			if got := ask(); strings.Contains(got, "Connection: close") {
				t.Errorf("closes before the signal: %q", got)
			}
			p.terminate(t)
			time.Sleep(200 * time.Millisecond) // for the signal to be handled
			conn, err := net.Dial("tcp", p.address)
			if (err == nil) != accepts {
				t.Errorf("connect after the signal: %v, want success %t", err, accepts)
			}
			if err == nil {
				_ = conn.Close()
			}
			if got := ask(); !strings.Contains(got, "Connection: close") || !strings.Contains(got, "Hello from Wangell") {
				t.Errorf("after the signal: %q, want an answer that closes the connection", got)
			}
			p.wait(t)
		})
	}
}

func TestHelloNamesAPortThatItCannotListenOn(t *testing.T) {
	cmd := exec.Command(helloBinary(t))
	cmd.Env = []string{"PORT=none"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "listen on port none") {
		t.Errorf("%v, %s", err, out)
	}
}

func extract(t *testing.T, img v1.Image, name string) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == name {
			break
		}
	}
	data, err := io.ReadAll(tr)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// freePort returns a port as the programs are told it.
func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(int(freeport.Reserve(t).Port()))
}

// talk sends a request, closes its side, and returns the whole answer.
func talk(t *testing.T, address, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c) // a reset ends it, too
	return string(answer)
}

func TestHelloWorksForEachAnswer(t *testing.T) {
	port := freePort(t)
	cmd := exec.Command(helloBinary(t))
	cmd.Env = []string{"PORT=" + port, "WORK=100ms"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	const answers = 3
	for n, begin := 0, time.Now(); n < answers; {
		answer, err := client.Get("http://127.0.0.1:" + port)
		if err == nil {
			answer.Body.Close()
			n++
		} else if time.Since(begin) > 60*time.Second {
			t.Fatal(err)
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used < answers*90*time.Millisecond {
		t.Errorf("%d answers took %v of processor time, want 100 ms each", answers, used)
	}
}
