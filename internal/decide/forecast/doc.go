// SPDX-License-Identifier: Apache-2.0

// Package forecast decides when a service should have a pod ready: from the gaps between its past uses, by the hybrid
// histogram policy of Shahrad et al., "Serverless in the Wild" (USENIX ATC 2020, section 4), or by a schedule. All
// functions are pure; times are parameters.
//
// The policy keeps a histogram of the idle times of a service, in bins of one minute up to four hours. While the
// histogram is representative, a pod is ready from a little before the 5th percentile of the idle times until a
// little after the 99th. If most idle times are longer than the histogram, the next one is forecast as a time series.
// The paper uses ARIMA for that; this package uses simple exponential smoothing (Brown, 1956), which is ARIMA(0,1,1),
// with the same margin. Otherwise, the service is kept for a fixed time, as without a forecast.
package forecast
