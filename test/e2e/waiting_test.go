// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// Clients that wait longer than the idle timeout get their answers, at both levels, and the service sleeps afterwards:
// through two fronts whose last upstream is slow to start, from a request that takes long, and after an upload with a
// pause.
func TestServicesDoNotSleepWhileClientsWait(t *testing.T) {
	const idle, wait = 3, 10 * time.Second
	var all []service
	var names []string // of the services that clients wait for
	levels := []string{"Connection", "Request"}
	for i, level := range levels {
		of := func(name string, env map[string]string) {
			all = append(all, service{name: fmt.Sprintf("%s-%d", name, i), idle: idle, env: env,
				more: fmt.Sprintf("balancing: {level: %s}", level)})
		}
		of("front", nil)
		of("middle", nil)
		of("poll", nil)
		of("upload", nil)
		for _, s := range all[len(all)-4:] {
			names = append(names, s.name)
		}
		of("back", map[string]string{"LISTEN_DELAY": wait.String()})
	}
	l := newLab(t, 1)
	l.startShop(t, all...)
	for _, name := range names {
		if address := l.address(t, name); strings.HasSuffix(name, "-1") {
			eventually(t, "Envoy is the front of "+name, func() bool {
				a, err := e2e.Ask(l.Client(), address)
				return err == nil && !strings.HasPrefix(a.Client, l.Client().Addr.String())
			})
		}
	}
	answers := make(chan error)
	ask := func(what string, f func() error) {
		go func() {
			err := f()
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
			answers <- err
		}()
	}
	for i, level := range levels {
		at := func(name string) string { return l.address(t, fmt.Sprintf("%s-%d", name, i)) }
		front, poll, upload := at("front"), at("poll"), at("upload")
		middle := at("middle") + "/proxy?target=" + at("back")
		ask("fronts, level "+level, func() error {
			_, err := e2e.ParseAnswer(e2e.Get(l.Client(), front, "/proxy?target="+url.QueryEscape(middle)))
			return err
		})
		ask("long request, level "+level, func() error {
			_, err := e2e.ParseAnswer(e2e.Get(l.Client(), poll, "/slow?for="+wait.String()))
			return err
		})
		ask("upload, level "+level, func() error {
			return uploadSlowly(e2e.HTTPClient(l.Client(), false), "http://"+upload+"/slow", wait)
		})
	}
	for range 3 * len(levels) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	for _, name := range names {
		l.untilAsleep(t, name)
	}
}

// uploadSlowly sends a form with a pause in the middle. The server reads all of it before it answers.
func uploadSlowly(c *http.Client, to string, pause time.Duration) error {
	body, w := io.Pipe()
	go func() {
		_, err := io.WriteString(w, "for=")
		time.Sleep(pause)
		if err == nil {
			_, err = io.WriteString(w, "1ms")
		}
		w.CloseWithError(err)
	}()
	response, err := c.Post(to, "application/x-www-form-urlencoded", body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", response.Status)
	}
	_, err = io.ReadAll(response.Body)
	return err
}
