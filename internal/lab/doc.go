// SPDX-License-Identifier: Apache-2.0

// Package lab measures Wangell and writes down what it measured: experiments, statistics, reports and plots. Every
// experiment runs in networks of package netlab, with an instance of its own, and leaves nothing behind.
package lab
