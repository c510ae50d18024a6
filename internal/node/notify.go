// SPDX-License-Identifier: Apache-2.0

package node

// notify makes the receiver of a channel with room for one element look for work.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
