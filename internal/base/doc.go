// SPDX-License-Identifier: Apache-2.0

// Package base holds what every other room may use and what knows nothing of services: files, clocks, processes,
// cgroups, text for people, and the version of the program. Its packages import nothing else of this repository.
//
// A package belongs here if another program could take it as it is.
package base
