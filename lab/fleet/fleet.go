// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync/atomic"

	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/wired"
)

// fleet is one run.
type fleet struct {
	params  Params
	key     wire.Key
	out     lab.Output
	leader  *wired.Controller
	daemons []*daemon

	gathering atomic.Pointer[gathering]
	wakes     []wake // by service
	wakesLeft atomic.Int64
	allKnow   chan struct{} // closed when every daemon has the pods of all woken services
}

// daemon is the wire's client over a simulated gate. Its fields are used by the client's handlers only.
type daemon struct {
	fleet  *fleet
	number int
	client *wire.Client

	gathering *gathering // of this session
	epoch     uint32     // number of this session
	serving   []uint32   // by service: the session in which it was reported to have a serving pod; 0 for none
	warm      int32      // services that were, in this session
	nodes     int        // of the list that is being received
}

// wake is the wake of one service.
type wake struct {
	asked  atomic.Int64 // monotime.Time of the WAKE; 0 before it
	daemon int          // that asked
	asker  atomic.Int64 // monotime.Time at which that daemon had the serving pod
	known  atomic.Int32 // number of daemons that have it
	all    atomic.Int64 // monotime.Time at which the last daemon had it
}

// gathering is a time at which all daemons connect to a controller.
type gathering struct {
	connected, table, nodes, pods *milestone
	warm                          int32 // services with a serving pod
}

func newGathering(daemons int, warm int) *gathering {
	return &gathering{
		connected: newMilestone(daemons), table: newMilestone(daemons), nodes: newMilestone(daemons),
		pods: newMilestone(daemons), warm: int32(warm),
	}
}
