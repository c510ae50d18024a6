// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// Source provides the data. A Controller of package controller is one.
type Source interface {
	Status() []status.Status
	Pressure() []status.Pressure
	Wakes(key v1alpha1.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan status.Event
	Resolve(name string) (v1alpha1.Key, error)
	Sleep(ctx context.Context, key v1alpha1.Key) error
	Gates(ctx context.Context) ([]status.Gate, error)
	Connections(ctx context.Context) (status.Connections, error)
}
