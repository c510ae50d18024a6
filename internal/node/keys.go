// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

// renewPause is the shortest time between two requests for new keys while no controller answers.
const renewPause = 10 * time.Second

// keptKeys is the content of the file with the keys.
type keptKeys struct {
	Name string         `json:"name"` // of the node
	Keys enrolment.Keys `json:"keys"`
}

func keysFile(runDir string) string { return filepath.Join(runDir, "node.keys") }

// obtainKeys sets Keys if Enrol provides them: to the keys that an earlier daemon of this node has kept, or to new
// ones. While it waits for new ones, the daemon is healthy but not ready; the gate of an earlier daemon keeps running.
func (c *Config) obtainKeys(ctx context.Context) error {
	if c.Enrol == nil {
		return nil
	}
	if k, err := c.keptKeys(); err == nil {
		c.Keys = k
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("the kept keys of this node cannot be used; asking for them", "error", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", healthy)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no key of this node received from a controller yet", http.StatusServiceUnavailable)
	})
	stop, err := c.serveHTTP(mux)
	if err != nil {
		return err
	}
	defer stop()
	return c.newKeys(ctx)
}

// newKeys asks for the keys, and keeps them.
func (c *Config) newKeys(ctx context.Context) error {
	keys, err := c.Enrol(ctx)
	if err != nil {
		return err
	}
	if keys == c.Keys {
		return nil
	}
	c.Keys = keys
	if err := c.keepKeys(); err != nil {
		c.Log.Warn("the keys of this node cannot be kept: the daemon needs a controller when it starts again", "error", err)
	}
	return nil
}

// keptKeys reads the keys that an earlier daemon has kept.
func (c *Config) keptKeys() (enrolment.Keys, error) {
	file := keysFile(c.RunDir)
	data, err := os.ReadFile(file)
	if err != nil {
		return enrolment.Keys{}, err
	}
	var kept keptKeys
	if err := json.Unmarshal(data, &kept); err != nil {
		return enrolment.Keys{}, fmt.Errorf("%s: not a file with keys", file) // the error may repeat its content
	}
	if kept.Name != c.Node || kept.Keys.Node == (enrolment.Keys{}).Node {
		return enrolment.Keys{}, fmt.Errorf("%s: has the keys of node %q, and this is %q", file, kept.Name, c.Node)
	}
	return kept.Keys, nil
}

// keepKeys replaces the file with the keys, which root alone may read.
func (c *Config) keepKeys() error {
	data, err := json.Marshal(keptKeys{c.Node, c.Keys})
	if err != nil {
		return err
	}
	return atomicfile.Write(keysFile(c.RunDir), data)
}

// forgetKeys removes the keys that are kept.
func forgetKeys(runDir string) error {
	if err := os.Remove(keysFile(runDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unanswered records that no controller answers: its master key may not match this node's keys.
func (d *daemon) unanswered() { notify(d.refused) }

// renewKeys asks for new keys when no controller answers, until ctx ends.
func (d *daemon) renewKeys(ctx context.Context) {
	for {
		select {
		case <-d.refused:
		case <-ctx.Done():
			return
		}
		before := d.cfg.Keys
		if d.cfg.newKeys(ctx) != nil {
			return // ctx ended
		}
		if before != d.cfg.Keys {
			d.log.Info("this node has a new key")
			d.client.SetKey(d.cfg.Keys.Node)
			d.key.set(d.cfg.Keys.Node)
		}
		if before.Proof != d.cfg.Keys.Proof {
			d.log.Warn("challenges of this node have the former key until its daemon is restarted: clients that prove " +
				"themselves at several nodes may have to try again")
		}
		select {
		case <-time.After(renewPause):
		case <-ctx.Done():
			return
		}
	}
}

// nodeKey is the key of this node, which may be replaced while the daemon runs.
type nodeKey struct {
	mu  sync.Mutex
	key wire.Key
}

func (k *nodeKey) get() wire.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key
}

func (k *nodeKey) set(key wire.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = key
}
