// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// body is implemented by every message. Its methods handle the bytes after the type.
type body interface {
	Message
	// check rejects values outside the protocol's limits; it is called before sending and after receiving.
	check() error
	// append appends the encoding of a message that passed check.
	append(b []byte) []byte
	// decode reads the fields; the decoder keeps the first error.
	decode(d *decoder)
}

// newMessage returns an empty message of a type, or nil if the protocol has no such type.
func newMessage(t Type) body {
	switch t {
	case TypeSync:
		return &Sync{}
	case TypeWake:
		return &Wake{}
	case TypeRefuse:
		return &Refuse{}
	case TypeBackends:
		return &Backends{}
	case TypeListening:
		return &Listening{}
	case TypeTrace:
		return &Trace{}
	case TypeStats:
		return &Stats{}
	case TypeIdle:
		return &Idle{}
	case TypeQuiet:
		return &Quiet{}
	case TypeNodes:
		return &Nodes{}
	case TypeNodesTags:
		return &Nodes{WithTags: true}
	case TypeTagKeys:
		return &TagKeys{}
	case TypeTagReady:
		return &TagReady{}
	case TypeNode:
		return &Node{}
	case TypePodReport:
		return &PodReport{}
	case TypeUsage:
		return &Usage{}
	case TypeAnswers:
		return &Answers{}
	case TypeLoads:
		return &Loads{}
	case TypeUnready:
		return &Unready{}
	case TypeDenied:
		return &Denied{}
	case TypeCaller:
		return &Caller{}
	case TypeMoved:
		return &Moved{}
	case TypeAlert:
		return &Alert{}
	case TypeDeaf:
		return &Deaf{}
	case TypeImages:
		return &Images{}
	case TypeImageReports:
		return &ImageReports{}
	case TypeImagePulled:
		return &ImagePulled{}
	case TypeUnreadable:
		return &Unreadable{}
	case TypeMirror:
		return &Mirror{}
	case TypeBlobs:
		return &Blobs{}
	case TypeHolders:
		return &Holders{}
	case TypeFreeze:
		return &Freeze{}
	case TypeFrozen:
		return &Frozen{}
	case TypeInspect:
		return &Inspect{}
	case TypeGateState:
		return &GateState{}
	case TypeConnected:
		return &Connected{}
	case TypeMemory:
		return &Memory{}
	case TypeRepositories:
		return &Repositories{}
	}
	return nil
}

// encode returns the encoding of a message: its type, then its body.
func encode(m Message) ([]byte, error) {
	p, ok := m.(body)
	if !ok {
		return nil, fmt.Errorf("wire: %T is not a message of this protocol", m)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("wire: %v: %w", m.Type(), err)
	}
	return p.append([]byte{byte(m.Type())}), nil
}

// decode reads one message that fills all of b. The message does not alias b.
func decode(b []byte) (Message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("wire: empty message")
	}
	m := newMessage(Type(b[0]))
	if m == nil {
		return nil, fmt.Errorf("wire: unknown message %v", Type(b[0]))
	}
	d := decoder{b: b, at: 1}
	m.decode(&d)
	err := d.end()
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("wire: %v: %w", m.Type(), err)
	}
	return m, nil
}
