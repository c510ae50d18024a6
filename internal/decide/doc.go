// SPDX-License-Identifier: Apache-2.0

// Package decide holds the decisions of Wangell as pure functions and state machines: when a service wakes, scales,
// sleeps and fails, which node gets which image, which client may connect. Its packages import internal/base, api and
// each other; they do no I/O, start no goroutine, and get the time as a parameter.
//
// The rooms that act (internal/controller, internal/node, internal/runtime, internal/images) ask them and carry out the
// answers, so each decision is tested without a kernel, a cluster or a clock.
package decide
