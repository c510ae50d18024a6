// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"time"
)

// replicas measures the same load against several numbers of pods, the modes in turn. At the end the number is
// autoscaled, one mode after the other, because it carries over from run to run.
func (s *sampler) replicas(ctx context.Context) error {
	for _, n := range s.params.replicaSettings() {
		if n == 0 {
			if err := s.autoscaledReplicas(ctx); err != nil {
				return err
			}
			continue
		}
		if err := s.scaleAll(ctx, n); err != nil {
			return err
		}
		for i := range s.params.Repetitions {
			for _, mode := range s.nextTurn() {
				if err := s.addReplicas(ctx, mode, n, i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *sampler) autoscaledReplicas(ctx context.Context) error {
	for _, mode := range s.nextTurn() {
		_, err := s.autoscaled(ctx, mode, targetCPU, func(time.Time) error {
			for i := range s.params.Repetitions {
				if err := s.addReplicas(ctx, mode, 0, i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sampler) addReplicas(ctx context.Context, mode string, replicas, repetition int) error {
	r, err := s.ab(ctx, mode, s.params.Requests)
	if err != nil {
		return err
	}
	s.out.Log("%s replicas, %d of %d: %s: %.2f s", replicasText(replicas), repetition+1, s.params.Repetitions, mode,
		r.Seconds)
	s.samples.Replicas = append(s.samples.Replicas, ReplicaSample{mode, replicas, repetition, r})
	return nil
}
