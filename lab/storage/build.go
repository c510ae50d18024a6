// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wangell.loutres.me/test/testutil/debimage"
)

// built are images by the names of their recipes.
type built map[string]v1.Image

// build builds the images of all tests.
func build(ctx context.Context, w workload, cases []Case) (images built, versions map[string]string, err error) {
	images, versions = built{}, map[string]string{}
	for _, c := range cases {
		for _, s := range w.servers(c) {
			if images[s.recipe.Name] != nil {
				continue
			}
			b, err := debimage.Build(ctx, s.recipe)
			if err != nil {
				return nil, nil, err
			}
			images[s.recipe.Name] = b.Image
			for _, p := range b.Packages {
				for _, wanted := range s.recipe.Packages {
					if p.Name == wanted {
						versions[p.Name] = p.Version
					}
				}
			}
		}
	}
	return images, versions, nil
}
