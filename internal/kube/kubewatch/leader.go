// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/typed/coordination/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
)

// Leader follows the Lease of the leading controller.
type Leader struct {
	Leases v1.LeaseInterface // client for the namespace of the Lease
	Name   string            // of the Lease
	// Cache is a file for the leader's last known address, which is used while the API server does not answer. Optional.
	Cache string
	Log   *slog.Logger
}

// Address returns the wire address in the identity of a leader, which is NAME/HOST:PORT.
func Address(identity string) (string, error) {
	_, addr, ok := strings.Cut(identity, "/")
	if !ok || !validAddress(addr) {
		return "", fmt.Errorf("leader %q: want NAME/HOST:PORT", identity)
	}
	return addr, nil
}

// Follow calls moved with the leader's address until ctx ends: first with the cached one, then whenever the leader
// changes. While there is no leader, the last one stays. A leader of an earlier term is never followed again: an API
// server that lags behind may still answer with it.
func (l *Leader) Follow(ctx context.Context, moved func(addr string)) {
	last, leaseUID, term := "", types.UID(""), int32(0)
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
		if n := lease.Spec.LeaseTransitions; n != nil {
			if lease.UID == leaseUID && *n < term {
				return
			}
			leaseUID, term = lease.UID, *n
		}
		addr, err := Address(*lease.Spec.HolderIdentity)
		if err != nil {
			l.Log.Error("cannot follow the leading controller", "lease", l.Name, "error", err)
			return
		}
		if addr == last {
			return
		}
		l.Log.Info("a controller leads", "leader", *lease.Spec.HolderIdentity)
		last = addr
		moved(addr)
		if err := l.writeCache(addr); err != nil {
			l.Log.Warn("cannot cache the leader's address", "error", err)
		}
	})
}

// Endpoint returns the present leader's address and the fingerprint of the certificate that it serves enrolment with.
func (l *Leader) Endpoint(ctx context.Context) (addr, fingerprint string, err error) {
	lease, err := l.Leases.Get(ctx, l.Name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("lease %s of the leading controller: %w", l.Name, err)
	}
	holder := lease.Spec.HolderIdentity
	if holder == nil || *holder == "" {
		return "", "", fmt.Errorf("lease %s: no controller leads", l.Name)
	}
	if addr, err = Address(*holder); err != nil {
		return "", "", err
	}
	if fingerprint = lease.Labels[v1alpha1.LabelCertificate]; fingerprint == "" {
		return "", "", fmt.Errorf("leader %s gives out no keys: it is of an earlier release or has no --daemon-account",
			*holder)
	}
	return addr, fingerprint, nil
}

func validAddress(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	return err == nil && host != "" && port != "" && !strings.Contains(host, "/")
}

// writeCache replaces the cache file atomically.
func (l *Leader) writeCache(addr string) error {
	if l.Cache == "" {
		return nil
	}
	return atomicfile.Write(l.Cache, []byte(addr+"\n"))
}
