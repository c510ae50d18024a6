// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
)

// Default values of a manifest. Times are in seconds.
const (
	DefaultNamespace                     = "default"
	DefaultIdleTimeout                   = 300
	DefaultWakeTimeout                   = 60
	DefaultTerminationGracePeriodSeconds = 30
	DefaultMaxParked                     = 1024
	DefaultMaxParkedPerSource            = 512
	DefaultRetries                       = 2
	DefaultDrainTimeout                  = 30
	DefaultMaxReplicas                   = 1
	DefaultMaxReplicasScaling            = 10 // if spec.scaling is set
	DefaultOutInterval                   = 2
	DefaultInInterval                    = 10
	DefaultOutStabilization              = 0
	DefaultInStabilization               = 60
	DefaultMaxStep                       = 4
)

// Range is the range of a field that holds a whole number.
type Range struct {
	// Min and Max are the smallest and the largest value.
	Min, Max int64
	// Example is a value that an error message suggests.
	Example int64
}

// String returns the range in words: "a number from 1 to 65535".
func (r Range) String() string {
	if r.Min == r.Max {
		return fmt.Sprint(r.Min)
	}
	return fmt.Sprintf("a number from %d to %d", r.Min, r.Max)
}

// Has reports whether v is in the range.
func (r Range) Has(v int64) bool { return r.Min <= v && v <= r.Max }

// MaxReplicas is the largest number of pods of a service: one message to a daemon must hold all of them.
const MaxReplicas = 32

// maxID is the largest user and group ID that Kubernetes accepts.
const maxID = 1<<31 - 1

var ranges = map[string]Range{
	"spec.port":                               {1, 65535, 80},
	"spec.targetPort":                         {1, 65535, 8080},
	"spec.hostPort":                           {1, 65535, 8080},
	"spec.idleTimeout":                        {1, 31536000, DefaultIdleTimeout},
	"spec.wakeTimeout":                        {1, 3600, DefaultWakeTimeout},
	"spec.terminationGracePeriodSeconds":      {0, 3600, DefaultTerminationGracePeriodSeconds},
	"spec.maxParked":                          {1, 4096, DefaultMaxParked},
	"spec.maxParkedPerSource":                 {1, 4096, DefaultMaxParkedPerSource},
	"spec.minReplicas":                        {0, MaxReplicas, 0},
	"spec.maxReplicas":                        {1, MaxReplicas, 3},
	"spec.replicas":                           {0, MaxReplicas, 1},
	"spec.retries":                            {0, 8, DefaultRetries},
	"spec.drainTimeout":                       {0, 86400, DefaultDrainTimeout},
	"spec.scaling.target":                     {1, 1000000, 50},
	"spec.scaling.outInterval":                {1, 3600, DefaultOutInterval},
	"spec.scaling.inInterval":                 {1, 3600, DefaultInInterval},
	"spec.scaling.outStabilization":           {0, 3600, DefaultOutStabilization},
	"spec.scaling.inStabilization":            {0, 3600, DefaultInStabilization},
	"spec.scaling.maxStep":                    {1, MaxReplicas, DefaultMaxStep},
	"spec.scaling.burstPerPod":                {1, 4096, 100},
	"spec.balancing.clientIdleTimeout":        {1, 86400, DefaultClientIdleTimeout},
	"spec.balancing.maxRequestsPerPod":        {1, 10000, 100},
	"spec.balancing.warmup":                   {1, 3600, 30},
	"spec.sticky.maxAge":                      {1, 31536000, 86400},
	"spec.sleep.prepared":                     {0, 16, 1},
	"spec.imagePull.nodes":                    {1, 1000, DefaultPullNodes},
	"spec.readinessProbe.initialDelaySeconds": {0, 3600, 0},
	"spec.readinessProbe.periodSeconds":       {1, 3600, 10},
	"spec.readinessProbe.timeoutSeconds":      {1, 3600, 1},
	"spec.readinessProbe.successThreshold":    {1, 100, 1},
	"spec.readinessProbe.failureThreshold":    {1, 100, 3},
	"spec.startupProbe.initialDelaySeconds":   {0, 3600, 0},
	"spec.startupProbe.periodSeconds":         {1, 3600, 10},
	"spec.startupProbe.timeoutSeconds":        {1, 3600, 1},
	"spec.startupProbe.successThreshold":      {1, 1, 1},
	"spec.startupProbe.failureThreshold":      {1, 3600, 30},
	"spec.securityContext.runAsUser":          {0, maxID, 1000},
	"spec.securityContext.runAsGroup":         {0, maxID, 1000},
}

// RangeOf returns the range of the field with a path such as "spec.port". It returns false for fields without a range.
func RangeOf(path string) (Range, bool) {
	r, ok := ranges[mainPath(path)]
	return r, ok
}

// mainPath returns the path of the same field of the main container, whose ranges all containers have:
// spec.containers[2].resources becomes spec.resources.
func mainPath(path string) string {
	for _, list := range []string{"spec.containers[", "spec.initContainers["} {
		if rest, ok := strings.CutPrefix(path, list); ok {
			if _, name, ok := strings.Cut(rest, "]."); ok {
				return "spec." + name
			}
		}
	}
	return path
}
