// SPDX-License-Identifier: Apache-2.0

package containerd

import "wangell.loutres.me/internal/runtime/podnet"

// TakeNetwork returns a network like that of a pod, for a program beside the pods. ReleaseNetwork or Destroy removes
// it.
func (r *Runtime) TakeNetwork() (podnet.Network, error) {
	n, err := r.nets.Take()
	if err == nil {
		r.keeper.kick() // the keeper makes another one ready
	}
	return n, err
}

// ReleaseNetwork removes a network of TakeNetwork by its name.
func (r *Runtime) ReleaseNetwork(name string) error { return r.nets.Release(name) }
