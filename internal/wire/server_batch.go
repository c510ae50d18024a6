// SPDX-License-Identifier: Apache-2.0

package wire

// Encoded is a reliable message as it is sent. Peers may share it, so that a message to many is encoded once.
type Encoded struct{ data []byte }

// Encode encodes a reliable message for SendBatch. The error is that a field of the message is outside its limits.
func Encode(m Message) (Encoded, error) {
	data, err := encodeAnswered(m)
	return Encoded{data}, err
}

// Size returns the length of the encoding in bytes.
func (e Encoded) Size() int { return len(e.data) }

// SendBatch sends messages in this order, with as many in a datagram as fit. then is optional, and called exactly once:
// with nil when the peer's Receive handler has returned from the last one, or with ErrPeerGone if the session ended
// first. It runs on a goroutine of the server and must return quickly. Errors are ErrPeerGone and ErrQueueFull; then is
// not called in this case, and no message was sent.
func (s *Server) SendBatch(peerID uint64, batch []Encoded, then func(error)) error {
	p, err := s.peer(peerID)
	if err != nil {
		return err
	}
	messages := make([][]byte, len(batch))
	for i, e := range batch {
		messages[i] = e.data
	}
	return p.session.send(then, true, messages...)
}
