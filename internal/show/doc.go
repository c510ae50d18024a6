// SPDX-License-Identifier: Apache-2.0

// Package show holds what people and scripts see: commands and their output, the table of services, the dashboard and
// the local API. Its packages never import internal/controller, internal/gate, internal/wire or internal/node, so a
// program that only shows services links none of them.
//
// What they show is defined in internal/status.
package show
