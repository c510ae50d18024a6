// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"io"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// Services provides the data of the API. A controller.Controller is one.
type Services interface {
	Status() []status.Status
	Resolve(name string) (v1alpha1.Key, error)
	Pressure() []status.Pressure
	Wakes(key v1alpha1.Key) []lifecycle.Waterfall
	Sleep(ctx context.Context, key v1alpha1.Key) error
	Logs(ctx context.Context, key v1alpha1.Key, w io.Writer, options runtime.LogOptions) error
	Subscribe(ctx context.Context) <-chan status.Event
	Ready() error
}

// BrokenFile is a manifest, or a folder of manifests, with mistakes. Its services keep their last valid state.
type BrokenFile struct {
	// File is the file as the user named it.
	File string `json:"file"`
	// Errors are its mistakes, with the file, line and field of each.
	Errors []string `json:"errors"`
}
