// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/status"
)

// retryPorts publishes services at ports that could not be had, once they can, until ctx ends.
func (a *services) retryPorts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.waiting:
		}
		for pause := time.Duration(0); a.ports.waiting(); {
			pause = backoff.Next(pause, firstPortPause, longestPortPause)
			select {
			case <-ctx.Done():
				return
			case <-a.waiting:
				pause = 0
			case <-time.After(pause):
				a.tryPorts()
			}
		}
	}
}

// tryPorts publishes services whose ports can be had.
func (a *services) tryPorts() {
	a.mu.Lock()
	defer a.mu.Unlock()
	free := a.ports.again()
	if len(free) == 0 {
		return
	}
	a.published.ports = maps.Clone(a.published.ports)
	for _, s := range a.given {
		k := v1alpha1.KeyOf(s)
		for _, port := range s.Spec.PortList() {
			if at := port.Host; at.IsValid() && free[at] == k {
				a.published.ports[at] = netip.AddrPortFrom(a.book.given[k], uint16(port.Number))
				a.log.Info("a service has got its port of the machine", "service", string(k), "hostPort", at.Port())
			}
		}
	}
	a.publish(a.published)
}

// Status returns the services as the controller does, with a message for those that wait for a port of the machine.
func (l local) Status() []status.Status {
	list := l.Controller.Status()
	for i := range list {
		s := &list[i].Service
		why := l.services.ports.waits(v1alpha1.KeyOf(s))
		if why == "" {
			continue
		}
		if s.Status.Message != "" {
			s.Status.Message += "; "
		}
		s.Status.Message += why
	}
	return list
}
