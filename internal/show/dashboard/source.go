// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// Source provides the data. A controller.Controller is one.
type Source interface {
	Status() []controller.Status
	Pressure() []controller.Pressure
	Wakes(key runtime.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan controller.Event
	Resolve(name string) (runtime.Key, error)
	Sleep(ctx context.Context, key runtime.Key) error
	Gates(ctx context.Context) ([]controller.Gate, error)
	Connections(ctx context.Context) (controller.Connections, error)
}
