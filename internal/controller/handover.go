// SPDX-License-Identifier: Apache-2.0

package controller

import "context"

// Retire ends the controller's decisions, because another one will lead: from now on it starts, stops and refuses
// nothing. It keeps reporting to daemons what becomes of the pods that exist: which ones are leaving, listen or have
// ended. A pod that is being deleted would otherwise get new flows until the next leader is there. Starts in progress
// go on; the runtime must ensure that they change nothing. The list of nodes stays as it is: daemons that move to the
// next leader have not left.
//
// Call AwaitSuccessor and Detach after it.
func (c *Controller) Retire() {
	c.catalog.close()
	c.engine.preparer.stop()
	c.loop.call(func() { c.loop.retired = true })
	c.workers.cancelStops()
}

// AwaitSuccessor returns once a retired controller has no daemons: they move to the next leader as soon as it answers
// them. If ctx ends before that, its error says so.
func (c *Controller) AwaitSuccessor(ctx context.Context) error {
	deserted := make(chan struct{})
	c.loop.call(func() { c.engine.daemons.whenDeserted(func() { close(deserted) }) })
	select {
	case <-deserted:
		return nil
	case <-c.loop.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
