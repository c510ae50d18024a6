// SPDX-License-Identifier: Apache-2.0

// Package wire implements the protocol between the daemons of the nodes (Client) and the controller (Server): sealed
// datagrams over UDP, reliable ordered messages, and a synchronised table of services. docs/protocol specifies it.
// It imports internal/base and internal/decide/sources only.
//
// The layers, from the bottom up: message encodings (codec.go, message*.go, service_parts.go), sealing (seal.go),
// frames (frame.go), repetition and ordering (delivery.go), handshake (handshake.go), session (session*.go), the table
// of services (table.go), sockets (batch.go), and the two ends (client*.go, server*.go). Message encodings, sealing,
// frames, delivery, handshake and table are pure: they do no I/O, and time is a parameter.
package wire
