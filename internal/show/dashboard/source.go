// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/lifecycle"
)

// Source provides the data. A controller.Controller is one.
type Source interface {
	Status() []controller.Status
	Pressure() []controller.Pressure
	Wakes(key v1alpha1.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan controller.Event
	Resolve(name string) (v1alpha1.Key, error)
	Sleep(ctx context.Context, key v1alpha1.Key) error
	Gates(ctx context.Context) ([]controller.Gate, error)
	Connections(ctx context.Context) (controller.Connections, error)
}
