// SPDX-License-Identifier: Apache-2.0

// Package images holds how images reach a node sooner: ahead of need, from other nodes, before all of an image is
// there, or stored in a form that unpacks faster. Its packages never import internal/controller, internal/gate or
// internal/show.
//
// Which node should have which image is decided in internal/decide/placement and internal/controller/images.
package images
