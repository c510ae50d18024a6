// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/readapi"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/freeport"
)

var nodeKey = wire.Key{7}

// idle is a mirror that listens, runs, and has a blob of which the first piece is there.
func idle(t *testing.T, rate int64) (m *Mirror, k blobindex.Key, first []byte) {
	t.Helper()
	m, err := New(Config{
		Dir: t.TempDir(), Hosts: t.TempDir(), Local: freeport.Reserve(t), Listen: freeport.Reserve(t), Rate: rate,
		Key: func() wire.Key { return nodeKey }, Send: func(wire.Message) {},
		Images: func(context.Context) (map[string]string, error) { return nil, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Want([]wire.WantedImage{{Ref: "registry.invalid/team/a:v1", Policy: wire.ImageIfNotPresent}})
	m.registries.failed("registry.invalid/team/a", errBusy, time.Now().Add(time.Hour)) // it is not asked
	k = blobindex.Key{Repository: "registry.invalid/team/a", Digest: [32]byte{1}}
	size := uint64(10 << 20)
	_, n := swarm.Bounds(size, 0)
	first = bytes.Repeat([]byte("wangell "), int(n)/8)
	m.mu.Lock()
	d, err := m.begin(t.Context(), k, size, false)
	if err == nil {
		_, err = d.file.WriteAt(first, 0)
		d.have.Add(0)
	}
	m.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { stop(); m.leave(d); <-done })
	return m, k, first
}

// A peer gets what it has a grant for, of what is there, and nothing else.
func TestAPeerNeedsAGrantForEachBlob(t *testing.T) {
	m, k, first := idle(t, 0)
	client, err := New(Config{Dir: t.TempDir(), Local: freeport.Reserve(t), Listen: freeport.Reserve(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.local.Close()
	defer client.listen.Close()
	id := client.peer(*m.Identity())
	later := uint64(time.Now().Add(time.Hour).Unix())
	grant := func(key wire.Key, client [32]byte, d wire.BlobDigest, expires uint64) string {
		g := enrolment.NewGrant(key, client, d, expires)
		return hex.EncodeToString(g[:])
	}
	self := client.Identity().Fingerprint
	right := grant(nodeKey, self, k.Digest, later)
	past := uint64(time.Now().Add(-time.Minute).Unix())
	for _, c := range []struct {
		name, grant string
		expires     uint64
		digest      wire.BlobDigest
		at          string
		status      int
	}{
		{"right", right, later, k.Digest, "bytes=0-99", http.StatusPartialContent},
		{"a piece that is not there", right, later, k.Digest, "bytes=5000000-5000099", http.StatusNotFound},
		{"beyond the end", right, later, k.Digest, "bytes=10485760-10485761", http.StatusNotFound},
		{"no range", right, later, k.Digest, "", http.StatusForbidden},
		{"no grant", "", later, k.Digest, "bytes=0-99", http.StatusForbidden},
		{"of another blob", right, later, wire.BlobDigest{2}, "bytes=0-99", http.StatusForbidden},
		{"of another client", grant(nodeKey, [32]byte{1}, k.Digest, later), later, k.Digest, "bytes=0-99",
			http.StatusForbidden},
		{"for another node", grant(wire.Key{8}, self, k.Digest, later), later, k.Digest, "bytes=0-99", http.StatusForbidden},
		{"with another end", right, later + 1, k.Digest, "bytes=0-99", http.StatusForbidden},
		{"expired", grant(nodeKey, self, k.Digest, past), past, k.Digest, "bytes=0-99", http.StatusForbidden},
		{"of a blob that nobody has", grant(nodeKey, self, wire.BlobDigest{2}, later), later, wire.BlobDigest{2},
			"bytes=0-99", http.StatusNotFound},
	} {
		url := "https://" + m.cfg.Listen.String() + blobsPath + hex.EncodeToString(c.digest[:])
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Range", c.at)
		req.Header.Set(grantHeader, c.grant)
		req.Header.Set(expiresHeader, strconv.FormatUint(c.expires, 10))
		res, err := client.peers[id].client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		right := c.status != http.StatusPartialContent || bytes.Equal(body, first[:100])
		if res.StatusCode != c.status || err != nil || !right {
			t.Errorf("%s: %s, %q, %v", c.name, res.Status, body, err)
		}
	}
}

// The certificate is the one that the node reported to the controller, or there is no connection.
func TestAPeerWithAnotherCertificateIsRefused(t *testing.T) {
	m, _, _ := idle(t, 0)
	other := *m.Identity()
	other.Fingerprint[0]++
	p := m.peers[func() string { m.mu.Lock(); defer m.mu.Unlock(); return m.peer(other) }()]
	res, err := p.client.Get("https://" + m.cfg.Listen.String() + blobsPath)
	if err == nil {
		res.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "is not the one that its node reported to the controller") {
		t.Errorf("got %v, %v", res, err)
	}
}

// What is sent to peers is not faster than the limit.
func TestTheRateIsLimited(t *testing.T) {
	const rate = 1 << 20
	m, k, first := idle(t, rate)
	later := uint64(time.Now().Add(time.Hour).Unix())
	g := enrolment.NewGrant(nodeKey, m.Identity().Fingerprint, k.Digest, later)
	m.mu.Lock()
	p := m.peers[m.peer(*m.Identity())]
	m.mu.Unlock()
	d := &download{key: k, size: 10 << 20, ctx: t.Context()}
	var err error
	if d.file, err = os.Create(filepath.Join(t.TempDir(), "to")); err != nil {
		t.Fatal(err)
	}
	defer d.file.Close()
	begin := time.Now()
	if err := m.askPeer(d, 0, p, offer{grant: g, expires: later}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(d.file.Name())
	if err != nil || sha256.Sum256(got) != sha256.Sum256(first) {
		t.Errorf("%d bytes, not those of the piece: %v", len(got), err)
	}
	if took, least := time.Since(begin), time.Second*time.Duration(len(first)-sendAtOnce)/rate; took < least {
		t.Errorf("%d bytes in %v, at %d per second", len(first), took, rate)
	}
}

func TestSettingsOfOthersStay(t *testing.T) {
	dir, mirror := t.TempDir(), freeport.Reserve(t)
	file := filepath.Join(dir, hostsFile)
	for range 2 { // the second time over its own
		if err := InstallHosts(dir, mirror); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `[host."http://`+mirror.String()+`"]`) {
		t.Errorf("%s, %v", text, err)
	}
	if err := RemoveHosts(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	err = errors.Join(RemoveHosts(dir), os.Mkdir(filepath.Dir(file), 0o755))
	if err = errors.Join(err, os.WriteFile(file, []byte("server = \"x\"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := InstallHosts(dir, mirror); !errors.Is(err, ErrForeignHosts) {
		t.Errorf("over somebody else's: %v", err)
	}
	if err := RemoveHosts(dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); string(text) != "server = \"x\"\n" {
		t.Errorf("%s, %v", text, err)
	}
}

func TestARegistryThatDoesNotServeRangesIsNotMistaken(t *testing.T) {
	for _, c := range []struct {
		status         int
		contentRange   string
		length         int64
		offset, wanted uint64
		ok             bool
	}{
		{http.StatusPartialContent, "bytes 10-19/100", 10, 10, 10, true},
		{http.StatusPartialContent, "bytes 0-9/100", 10, 10, 10, false},
		{http.StatusPartialContent, "", 10, 10, 10, false},
		{http.StatusPartialContent, "bytes 0-0/100", 1, 0, 1, true},
		{http.StatusPartialContent, "", 1, 0, 1, false},
		{http.StatusOK, "", 100, 10, 10, false},
		{http.StatusOK, "", 100, 0, 10, false},
		{http.StatusOK, "", 10, 0, 10, true}, // all of it
		{http.StatusOK, "", 10, 0, 0, true},
		{http.StatusTooManyRequests, "", 0, 0, 10, false},
	} {
		res := &http.Response{
			StatusCode: c.status, Header: http.Header{}, ContentLength: c.length, Body: io.NopCloser(strings.NewReader("")),
		}
		res.Header.Set("Content-Range", c.contentRange)
		res.Header.Set("Retry-After", "7")
		_, err := rangeOf(res, c.offset, c.wanted)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		var limited *limitedError
		asks := errors.As(err, &limited)
		if asks != (c.status == http.StatusTooManyRequests) || asks && limited.after != 7*time.Second {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A snapshotter gets a part of a blob that is here, and is sent on at once for another: it must not wait until all of
// the blob has come.
func TestASnapshotterGetsThePartsThatAreHere(t *testing.T) {
	m, k, first := idle(t, 0)
	ask := func(byteRange string) (int, []byte) {
		t.Helper()
		url := "http://" + m.cfg.Local.String() + "/v2/team/a/blobs/" + digestOf(k).String() + "?ns=registry.invalid"
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Range", byteRange)
		req.Header.Set(readapi.PartsHeader, "here")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, body
	}
	if status := func() int { // a page whose name leads to this node reads no image
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.cfg.Local.String()+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "evil.example"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}(); status != http.StatusMisdirectedRequest {
		t.Errorf("for another host: %d", status)
	}
	if status, body := ask("bytes=100-4195"); status != http.StatusPartialContent || !bytes.Equal(body, first[100:4196]) {
		t.Errorf("a part that is here: %d, %d bytes", status, len(body))
	}
	for _, r := range []string{"bytes=5000000-5000099", "bytes=10485760-10485761", "bytes=9-1", "bytes=0-", "bytes=-5"} {
		if status, body := ask(r); status != http.StatusNotFound {
			t.Errorf("%s: %d, %q", r, status, body)
		}
	}
}
