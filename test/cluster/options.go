// SPDX-License-Identifier: Apache-2.0

package main

import "time"

const defaultName = "wangell"

// options are the flags of all commands.
type options struct {
	name, dir, kubernetes, cni, proxyMode, node, snapshotter string
	nodes                                                    int
	client, control, keepLogs                                bool
	timeout, nodeGrace                                       time.Duration
}

func (o *options) folder() string {
	if o.dir != "" {
		return o.dir
	}
	return "/var/tmp/wangell-cluster-" + o.name
}

// openState reads the state of a cluster and locks it against other commands.
func openState(o *options) (*state, func(), error) {
	if _, err := loadState(o.folder()); err != nil {
		return nil, nil, err
	}
	unlock, err := lock(o.folder())
	if err != nil {
		return nil, nil, err
	}
	s, err := loadState(o.folder())
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return s, unlock, nil
}
