// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// Leader says which controllers' leader to follow.
type Leader struct {
	// Leases is a client for the namespace of the Lease, Name the Lease.
	Leases v1.LeaseInterface
	Name   string
	// Cache is a file that keeps the leader's last known address, for when the API server is away; empty keeps none.
	Cache string
	Log   *slog.Logger
}

// Address returns the wire address in a leader's identity, which is NAME/HOST:PORT.
func Address(identity string) (string, error) {
	_, addr, ok := strings.Cut(identity, "/")
	if !ok || !validAddress(addr) {
		return "", fmt.Errorf("leader %q: want NAME/HOST:PORT", identity)
	}
	return addr, nil
}

// Follow tells moved the leader's address, at first the one kept from before, and whenever there is another leader, until
// ctx ends. While there is none, the last one stays.
func (l *Leader) Follow(ctx context.Context, moved func(addr string)) {
	last := ""
	if b, err := os.ReadFile(l.Cache); err == nil && l.Cache != "" {
		if addr := strings.TrimSpace(string(b)); validAddress(addr) {
			last = addr
			moved(addr)
		}
	}
	items := func(list *coordinationv1.LeaseList) []coordinationv1.Lease { return list.Items }
	follow(ctx, l.Log, l.Name, source[*coordinationv1.LeaseList](l.Leases), items, func(lease *coordinationv1.Lease) {
		if lease == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return
		}
		addr, err := Address(*lease.Spec.HolderIdentity)
		if err != nil {
			l.Log.Error("the controllers' leader cannot be followed", "lease", l.Name, "error", err)
			return
		}
		if addr == last {
			return
		}
		l.Log.Info("the controllers have a leader", "leader", *lease.Spec.HolderIdentity)
		last = addr
		moved(addr)
		if err := l.keep(addr); err != nil {
			l.Log.Warn("the leader's address is not kept for when the API server is away", "error", err)
		}
	})
}

func validAddress(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	return err == nil && host != "" && port != "" && !strings.Contains(host, "/")
}

// keep writes the cache whole or not at all.
func (l *Leader) keep(addr string) error {
	if l.Cache == "" {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(l.Cache), filepath.Base(l.Cache)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(addr + "\n")
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), l.Cache)
}
