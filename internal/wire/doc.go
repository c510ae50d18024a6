// SPDX-License-Identifier: Apache-2.0

// Package wire implements the protocol between the daemons of the nodes (Client) and the controller (Server): sealed
// datagrams over UDP, reliable ordered messages, and a synchronised table of services. docs/protocol specifies it.
// It imports internal/base and internal/decide/sources only.
//
// The layers, each in files of its own, from the bottom up: message encodings (message*.go, encode*.go), sealing
// (seal.go), frames (frame.go), repetition and ordering (sender.go, receiver.go), handshake (handshake.go), session
// (session*.go), table synchronisation (table*.go), and the two ends (client*.go, server*.go). Everything up to the
// handshake is pure: it does no I/O, and time is a parameter.
package wire
