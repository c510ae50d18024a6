// SPDX-License-Identifier: Apache-2.0

package scaling

import "wangell.loutres.me/lab/report"

// fixedTimes returns the times of complete runs in a mode.
func fixedTimes(samples []FixedSample, mode string) []float64 {
	return report.Collect(samples, func(s FixedSample) (float64, bool) {
		return s.Seconds, s.Mode == mode && s.Aborted == ""
	})
}

// rateValues returns the rates of a mode, a place of clients and a kind of connections.
func rateValues(samples []RateSample, mode, clients string, keep bool) []float64 {
	return report.Collect(samples, func(s RateSample) (float64, bool) {
		return s.PerSecond, s.Mode == mode && s.Clients == clients && s.KeepAlive == keep
	})
}

// replicaTimes returns the times of complete runs in a mode with a number of pods.
func replicaTimes(samples []ReplicaSample, mode string, replicas int) []float64 {
	return report.Collect(samples, func(s ReplicaSample) (float64, bool) {
		return s.Seconds, s.Mode == mode && s.Replicas == replicas && s.Aborted == ""
	})
}
