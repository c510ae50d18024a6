// SPDX-License-Identifier: Apache-2.0

// Package status is what people and programs are shown: the state of services, pods and nodes, and events. It has types
// and what follows from their values alone, and imports nothing but base, decide and the API.
package status
