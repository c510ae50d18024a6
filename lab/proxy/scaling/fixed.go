// SPDX-License-Identifier: Apache-2.0

package scaling

import "context"

// fixed measures the same load in each mode, in turn.
func (s *sampler) fixed(ctx context.Context) error {
	if err := s.scaleAll(ctx, fixedReplicas); err != nil {
		return err
	}
	for i := range s.params.Repetitions {
		for _, mode := range s.nextTurn() {
			r, err := s.ab(ctx, mode, s.params.Requests)
			if err != nil {
				return err
			}
			s.out.Log("fixed load, %d of %d: %s: %.2f s", i+1, s.params.Repetitions, mode, r.Seconds)
			s.samples.Fixed = append(s.samples.Fixed, FixedSample{mode, i, r})
		}
	}
	return nil
}
