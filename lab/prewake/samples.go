// SPDX-License-Identifier: Apache-2.0

package prewake

// Samples are the replayed services and the results.
type Samples struct {
	Days     int       `json:"days"`
	Services []Service `json:"services"`
	Policies []Policy  `json:"policies"`
}

// Service is a generated service.
type Service struct {
	// Uses is the number of its uses.
	Uses int `json:"uses"`
	// Variation is the coefficient of variation of the times between them; -1 if there are fewer than three uses.
	Variation float64 `json:"cv"`
	// Memory is what a pod of it takes, in MB.
	Memory float64 `json:"memory_mb"`
}

// Policy is what came of a policy.
type Policy struct {
	// Predict is spec.sleep.predict, and Minutes spec.idleTimeout.
	Predict bool `json:"predict"`
	Minutes int  `json:"minutes"`
	// Cold is the number of cold wakes of each service.
	Cold []int `json:"cold"`
	// Idle is the memory of pods times the time for which they were ready without use, in MB·s, of all services.
	Idle float64 `json:"idle_mb_s"`
	// Bases count the forecasts that were made from each basis.
	Bases map[string]int `json:"bases,omitempty"`
}
