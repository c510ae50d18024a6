// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

func TestEncodeRefusesWhatIsNotAcknowledged(t *testing.T) {
	if _, err := Encode(&Stats{}); err == nil {
		t.Error("Stats was encoded for a batch, whose last message is to be acknowledged")
	}
	if e, err := Encode(wake(1)); err != nil || e.Size() == 0 {
		t.Errorf("%d bytes, %v", e.Size(), err)
	}
}
